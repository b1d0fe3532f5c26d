// The release this header belongs to; CMakeLists.txt states the same number.
#ifndef NIBBLE_VERSION_H
#define NIBBLE_VERSION_H

#define NIB_VERSION "0.1.0"

#endif
