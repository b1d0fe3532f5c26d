#include "text/json_text.h"

#include <stdlib.h>

enum { LEAST_DIGITS = 15, MOST_DIGITS = 17 }; // of a real

static void write_real(struct nib_writer *out, double value)
{
    json_t *real = json_real(value);
    for (size_t digits = LEAST_DIGITS; real; digits++) {
        char *text = json_dumps(real, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        bool enough = !text || digits == MOST_DIGITS || strtod(text, NULL) == value;
        out->failed |= !text;
        if (text && enough)
            nib_write_string(out, text);
        free(text);
        if (enough)
            break;
    }
    out->failed |= !real;
    json_decref(real);
}

// Bytes of the string at the text's beginning, its quotes included.
static size_t string_size(const char *text)
{
    size_t size = 1;
    while (text[size] && text[size] != '"')
        size += text[size] == '\\' && text[size + 1] ? 2 : 1;
    return text[size] ? size + 1 : size;
}

void nib_write_json(struct nib_writer *out, const json_t *json, size_t flags)
{
    char *dumped = json_dumps(json, flags | JSON_ENCODE_ANY | JSON_REAL_PRECISION(MOST_DIGITS));
    out->failed |= !dumped;
    for (const char *at = dumped; at && *at;) {
        size_t number = strspn(at, "+-.0123456789eE"), size = *at == '"' ? string_size(at) : 1;
        bool begins = *at == '-' || (*at >= '0' && *at <= '9'); // else "e" of a word
        if (begins && strcspn(at, ".eE") < number)
            write_real(out, strtod(at, NULL));
        else
            nib_write(out, at, begins ? number : size);
        at += begins ? number : size;
    }
    free(dumped);
}
