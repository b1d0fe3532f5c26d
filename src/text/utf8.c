#include <string.h>

#include "text/tokenizer_parts.h"

// Unicode 15, table 3-7: the second byte's range is narrower after four of the lead bytes.
enum nib_utf8_kind nib_utf8_scan(const uint8_t *p, size_t size, size_t *length)
{
    uint8_t lead = p[0], low = 0x80, high = 0xbf;
    *length = 1;
    if (lead < 0x80)
        return NIB_UTF8_WHOLE;
    if (lead < 0xc2 || lead > 0xf4)
        return NIB_UTF8_INVALID;
    size_t whole = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    for (; *length < whole; ++*length) {
        if (*length == size)
            return NIB_UTF8_UNFINISHED;
        if (p[*length] < low || p[*length] > high)
            return NIB_UTF8_INVALID;
        low = 0x80;
        high = 0xbf;
    }
    return NIB_UTF8_WHOLE;
}

bool nib_utf8_valid(const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    for (size_t at = 0, length; at < size; at += length)
        if (nib_utf8_scan(p + at, size - at, &length) != NIB_UTF8_WHOLE)
            return false;
    return true;
}

size_t nib_utf8_space_at(const uint8_t *p, size_t size)
{
    if (size == 0)
        return 0;
    if (p[0] < 0x80)
        return p[0] == ' ' || (p[0] >= '\t' && p[0] <= '\r');
    if (size >= 2 && p[0] == 0xc2)
        return p[1] == 0x85 || p[1] == 0xa0 ? 2 : 0;
    if (size < 3 || p[0] < 0xe1 || p[0] > 0xe3)
        return 0;
    uint32_t character = (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    bool space = character == 0x1680 || (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
                 character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
    return space ? 3 : 0;
}

size_t nib_utf8_put(uint32_t character, uint8_t out[4])
{
    if (character < 0x80) {
        out[0] = (uint8_t)character;
        return 1;
    }
    size_t size = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--, character >>= 6)
        out[i] = (uint8_t)(0x80 | (character & 0x3f));
    out[0] = (uint8_t)((0xf00 >> size) | character);
    return size;
}

static nib_status put_replacement(struct nib_bytes *out, struct nib_error *err)
{
    return nib_bytes_append(out, "\xef\xbf\xbd", 3, err);
}

// Takes bytes one by one until the unfinished character is decided; *used says how many.
static nib_status finish_pending(struct nib_utf8_stream *stream, const uint8_t *p, size_t size, size_t *used,
                                 struct nib_bytes *out, struct nib_error *err)
{
    *used = 0;
    while (stream->pending_size > 0 && *used < size) {
        stream->pending[stream->pending_size] = p[*used];
        size_t length;
        switch (nib_utf8_scan(stream->pending, stream->pending_size + 1u, &length)) {
        case NIB_UTF8_UNFINISHED:
            stream->pending_size++;
            ++*used;
            break;
        case NIB_UTF8_WHOLE:
            stream->pending_size = 0;
            ++*used;
            return nib_bytes_append(out, stream->pending, length, err);
        case NIB_UTF8_INVALID: // the new byte does not belong to it and may begin something itself
            stream->pending_size = 0;
            return put_replacement(out, err);
        }
    }
    return NIB_OK;
}

nib_status nib_utf8_stream_push(struct nib_utf8_stream *stream, const void *bytes, size_t size,
                                struct nib_bytes *out, struct nib_error *err)
{
    const uint8_t *p = bytes;
    size_t at, run, length;
    nib_status status = finish_pending(stream, p, size, &at, out, err);
    for (; status == NIB_OK && at < size; at += length) {
        enum nib_utf8_kind kind = NIB_UTF8_WHOLE;
        for (run = at; at < size; at += length)
            if ((kind = nib_utf8_scan(p + at, size - at, &length)) != NIB_UTF8_WHOLE)
                break;
        status = nib_bytes_append(out, p + run, at - run, err);
        if (status != NIB_OK || kind == NIB_UTF8_WHOLE)
            return status;
        if (kind == NIB_UTF8_INVALID) {
            status = put_replacement(out, err);
        } else {
            memcpy(stream->pending, p + at, length);
            stream->pending_size = (uint8_t)length;
        }
    }
    return status;
}

nib_status nib_utf8_stream_flush(struct nib_utf8_stream *stream, struct nib_bytes *out, struct nib_error *err)
{
    bool waiting = stream->pending_size > 0;
    stream->pending_size = 0;
    return waiting ? put_replacement(out, err) : NIB_OK;
}
