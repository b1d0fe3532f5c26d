// Writing the files that tests read: text, raw bytes, safetensors.
#ifndef NIB_TEST_FILES_H
#define NIB_TEST_FILES_H

#include <stddef.h>
#include <stdint.h>

// All of these end the program with a message when the system refuses.
void test_write(const char *path, const void *bytes, size_t size);
void test_write_text(const char *path, const char *text);
uint8_t *test_read(const char *path, size_t *size); // free it

// A path inside a folder, in a static ring of buffers (valid for the next 8 calls).
const char *test_inside(const char *folder, const char *name);

// A safetensors file in the making. Start from all zero; test_safetensors_write frees it.
struct test_safetensors {
    char *header; // entries so far, without the braces
    size_t header_size;
    uint8_t *data;
    size_t data_size;
};

// `shape` is JSON, such as "[2, 3]"; the data's bytes are taken as they are. `name` is written unescaped.
void test_safetensors_add(struct test_safetensors *file, const char *name, const char *dtype, const char *shape,
                          const void *data, size_t bytes);
// One more member of the header, as JSON: "\"__metadata__\":{\"a\":\"b\"}".
void test_safetensors_member(struct test_safetensors *file, const char *json);
void test_safetensors_write(struct test_safetensors *file, const char *path);

// A header as written, then `data_size` bytes of 1, 2, 3, …
void test_write_raw_safetensors(const char *path, const char *header, size_t data_size);

#endif
