#include "base/utf8_text.h"

#include <stdbool.h>
#include <stddef.h>

// Bytes of the character that begins at p, 0 when it is none (Unicode 15, table 3-7).
static size_t character(const unsigned char *p)
{
    static const struct {
        unsigned char first, last, low, high; // of the first byte, and of the second
        size_t size;
    } forms[] = {
        {0x20, 0x7e, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if (p[0] < forms[f].first || p[0] > forms[f].last)
            continue;
        bool fits = forms[f].size == 1 || (p[1] >= forms[f].low && p[1] <= forms[f].high);
        for (size_t i = 2; fits && i < forms[f].size; i++)
            fits = (p[i] & 0xc0) == 0x80;
        return fits ? forms[f].size : 0;
    }
    return 0;
}

void nib_make_printable(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p;) {
        size_t size = character(p);
        if (!size)
            *p = '?';
        p += size ? size : 1;
    }
}
