#include "support/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char *next_buffer(void)
{
    static char ring[8][4096];
    static int at;
    return ring[at++ & 7];
}

const char *test_source(const char *relative)
{
    char *path = next_buffer();
    snprintf(path, 4096, "%s/%s", NIB_SOURCE_DIR, relative);
    return path;
}

const char *test_data(const char *relative)
{
    char *path = next_buffer();
    snprintf(path, 4096, "%s/tests/data/%s", NIB_SOURCE_DIR, relative);
    return path;
}

const char *test_scratch(const char *name)
{
    char *path = next_buffer();
    snprintf(path, 4096, "%s/scratch", NIB_BUILD_DIR);
    mkdir(path, 0777);
    snprintf(path, 4096, "%s/scratch/%s-XXXXXX", NIB_BUILD_DIR, name);
    return mkdtemp(path);
}
