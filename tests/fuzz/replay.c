// Stands in for libFuzzer's main: feeds every file of the given corpus folders to the target once.
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    static uint8_t buffer[1 << 22];
    size_t size = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    // An exact-sized heap copy lets AddressSanitizer see a read past the end.
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        return 0;
    for (size_t i = 0; i < size; i++)
        copy[i] = buffer[i];
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 1;
}

int main(int argc, char **argv)
{
    int replayed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) {
            fprintf(stderr, "replay: cannot open %s\n", argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(folder));) {
            char path[4096];
            if (entry->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name) < 4096)
                replayed += replay_file(path);
        }
        closedir(folder);
    }
    printf("%d inputs replayed\n", replayed);
    return replayed > 0 ? 0 : 1;
}
