#include "support/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const char *what, const char *path)
{
    perror(path);
    fprintf(stderr, "test support: cannot %s %s\n", what, path);
    abort();
}

static void *grow(void *old, size_t size)
{
    void *memory = realloc(old, size);
    if (!memory)
        stop("allocate for", "a test file");
    return memory;
}

void test_write(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file || (size && fwrite(bytes, 1, size, file) != size) || fclose(file) != 0)
        stop("write", path);
}

void test_write_text(const char *path, const char *text)
{
    test_write(path, text, strlen(text));
}

uint8_t *test_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        stop("read", path);
    long length = ftell(file);
    rewind(file);
    uint8_t *bytes = grow(NULL, (size_t)length + 1);
    if (fread(bytes, 1, (size_t)length, file) != (size_t)length)
        stop("read", path);
    fclose(file);
    *size = (size_t)length;
    return bytes;
}

const char *test_inside(const char *folder, const char *name)
{
    static char ring[8][4096];
    static int at;
    char *path = ring[at++ & 7];
    snprintf(path, 4096, "%s/%s", folder, name);
    return path;
}

void test_safetensors_member(struct test_safetensors *file, const char *json)
{
    size_t length = strlen(json);
    file->header = grow(file->header, file->header_size + length + 2);
    if (file->header_size)
        file->header[file->header_size++] = ',';
    memcpy(file->header + file->header_size, json, length + 1);
    file->header_size += length;
}

void test_safetensors_add(struct test_safetensors *file, const char *name, const char *dtype, const char *shape,
                          const void *data, size_t bytes)
{
    size_t capacity = strlen(name) + strlen(shape) + 200;
    char *entry = grow(NULL, capacity);
    snprintf(entry, capacity, "\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", name, dtype,
             shape, file->data_size, file->data_size + bytes);
    test_safetensors_member(file, entry);
    free(entry);
    file->data = grow(file->data, file->data_size + bytes + 1);
    if (bytes)
        memcpy(file->data + file->data_size, data, bytes);
    file->data_size += bytes;
}

void test_safetensors_write(struct test_safetensors *file, const char *path)
{
    FILE *out = fopen(path, "wb");
    if (!out)
        stop("write", path);
    uint64_t length = file->header_size + 2;
    fwrite(&length, 8, 1, out);
    fprintf(out, "{%.*s}", (int)file->header_size, file->header ? file->header : "");
    if (file->data_size)
        fwrite(file->data, 1, file->data_size, out);
    if (fclose(out) != 0)
        stop("write", path);
    free(file->header);
    free(file->data);
    *file = (struct test_safetensors){0};
}

void test_write_raw_safetensors(const char *path, const char *header, size_t data_size)
{
    uint64_t length = strlen(header);
    uint8_t *bytes = grow(NULL, 8 + length + data_size);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_size; i++)
        bytes[8 + length + i] = (uint8_t)(i + 1);
    test_write(path, bytes, 8 + length + data_size);
    free(bytes);
}
