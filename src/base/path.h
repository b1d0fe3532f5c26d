// File names.
#ifndef NIB_BASE_PATH_H
#define NIB_BASE_PATH_H

#include <stdbool.h>

// "folder/name" in new memory (free it), or NULL.
char *nib_path_join(const char *folder, const char *name);

bool nib_path_exists(const char *path);

// The part after the last slash.
const char *nib_path_base(const char *path);

#endif
