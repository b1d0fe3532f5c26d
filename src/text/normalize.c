// Unicode's normalization form C, by utf8proc.
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

#define MARKS_IN_A_ROW 1024

// Characters below U+0300, whose first bytes are below 0xCC, do not combine and are in the form already.
static bool surely_normal(const uint8_t *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] >= 0xcc)
            return false;
    return true;
}

static nib_status append_normal(const uint8_t *text, size_t size, struct nib_bytes *out, struct nib_error *err)
{
    utf8proc_uint8_t *form = NULL;
    utf8proc_ssize_t length =
        utf8proc_map(text, (utf8proc_ssize_t)size, &form, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    nib_status status = length < 0 ? nib_fail(err, length == UTF8PROC_ERROR_NOMEM ? NIB_ERR_MEMORY : NIB_ERR_LIMIT,
                                              "NFC of %zu bytes: %s", size, utf8proc_errmsg(length))
                                   : nib_bytes_append(out, form, (size_t)length, err);
    free(form);
    return status;
}

static bool is_mark(const uint8_t *text, size_t size)
{
    utf8proc_int32_t character;
    return text[0] >= 0xcc && utf8proc_iterate(text, (utf8proc_ssize_t)size, &character) > 0 &&
           utf8proc_get_property(character)->combining_class > 0;
}

// U+11A7, which utf8proc 2.8 loses behind a Hangul syllable, as if it were the final consonant before the first. It
// combines with nothing before it.
static bool is_lost(const uint8_t *text, size_t size)
{
    return size == 3 && memcmp(text, "\xe1\x86\xa7", 3) == 0;
}

nib_status nib_normalize_nfc(const uint8_t *text, size_t size, struct nib_bytes *out, struct nib_error *err)
{
    if (surely_normal(text, size))
        return nib_bytes_append(out, text, size, err);
    nib_status status = NIB_OK;
    size_t done = 0, marks = 0;
    for (size_t at = 0, length; status == NIB_OK && at < size; at += length) {
        bool whole = nib_utf8_scan(text + at, size - at, &length) == NIB_UTF8_WHOLE;
        marks = whole && is_mark(text + at, length) ? marks + 1 : 0;
        if (is_lost(text + at, length)) {
            status = append_normal(text + done, at - done, out, err);
            done = at;
        }
        if (whole && marks < MARKS_IN_A_ROW)
            continue;
        size_t end = whole ? at + length : at; // what is not UTF-8 goes as it is, behind what comes before it
        status = append_normal(text + done, end - done, out, err);
        if (status == NIB_OK && !whole)
            status = nib_bytes_append(out, text + at, length, err);
        done = at + length;
        marks = 0;
    }
    return status == NIB_OK ? append_normal(text + done, size - done, out, err) : status;
}
