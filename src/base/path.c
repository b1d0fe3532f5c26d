#include "base/path.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *nib_path_join(const char *folder, const char *name)
{
    char *path = malloc(strlen(folder) + strlen(name) + 2);
    if (path)
        stpcpy(stpcpy(stpcpy(path, folder), "/"), name);
    return path;
}

bool nib_path_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

const char *nib_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
