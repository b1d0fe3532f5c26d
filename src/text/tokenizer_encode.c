// Encoding: added tokens first, then the split pattern, then merging, piece by piece without intermediate lists.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

#define TEXT_LIMIT ((size_t)INT32_MAX)

// A run of text and what the split patterns see in its place, byte for byte of equal length.
struct piece {
    const uint8_t *bytes; // [size]
    const uint8_t *seen;  // [size] valid UTF-8
    size_t size;
};

struct encoder {
    const struct nib_tokenizer *tokenizer;
    struct nib_bpe_scratch scratch;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    struct nib_token_list *list;
    struct nib_error *err;
};

static struct piece part_of(struct piece piece, size_t begin, size_t end)
{
    return (struct piece){piece.bytes + begin, piece.seen + begin, end - begin};
}

static nib_status encode_piece(struct encoder *encoder, size_t stage, struct piece piece);

// What ByteLevel's add_prefix_space does to a piece.
static nib_status encode_with_space(struct encoder *encoder, size_t stage, struct piece piece)
{
    if (piece.bytes[0] == ' ')
        return encode_piece(encoder, stage + 1, piece);
    uint8_t *copy = malloc(2 * (piece.size + 1));
    if (!copy)
        return nib_fail_memory(encoder->err, 2 * (piece.size + 1), "a piece of text");
    uint8_t *seen = copy + piece.size + 1;
    copy[0] = seen[0] = ' ';
    memcpy(copy + 1, piece.bytes, piece.size);
    memcpy(seen + 1, piece.seen, piece.size);
    nib_status status = encode_piece(encoder, stage + 1, (struct piece){copy, seen, piece.size + 1});
    free(copy);
    return status;
}

// The next match at or behind `from`; false in *found when there is none.
static nib_status find_match(struct encoder *encoder, const pcre2_code *code, struct piece piece, size_t from,
                             bool *found, size_t *begin, size_t *end)
{
    *found = false;
    if (from > piece.size)
        return NIB_OK;
    // The text is known to be UTF-8; checking it again for every match would take quadratic time.
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code, piece.seen, piece.size, from, options, encoder->match, encoder->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, piece.seen, piece.size, from, options | PCRE2_NO_JIT, encoder->match,
                         encoder->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return NIB_OK;
    if (rc < 0) {
        char reason[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
        return nib_fail(encoder->err, rc == PCRE2_ERROR_NOMEMORY ? NIB_ERR_MEMORY : NIB_ERR_LIMIT,
                        "the tokenizer's split pattern gives up at byte %zu of a text of %zu: %s", from,
                        piece.size, reason);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(encoder->match);
    *found = true;
    *begin = span[0];
    *end = span[1];
    return NIB_OK;
}

static size_t next_character(struct piece piece, size_t at)
{
    size_t length = 1;
    if (at < piece.size)
        nib_utf8_scan(piece.seen + at, piece.size - at, &length);
    return at + length;
}

static nib_status encode_split(struct encoder *encoder, size_t stage, struct piece piece)
{
    const struct nib_split_stage *split = &encoder->tokenizer->stages[stage];
    size_t done = 0, from = 0;
    bool matched = false;
    nib_status status = NIB_OK;
    while (status == NIB_OK) {
        size_t begin, end;
        bool found;
        status = find_match(encoder, split->code, piece, from, &found, &begin, &end);
        if (status != NIB_OK || !found)
            break;
        if (begin == end && matched && end == done) { // an empty match right behind the last one does not count
            from = next_character(piece, from);
            continue;
        }
        if (!split->drop_gaps)
            status = encode_piece(encoder, stage + 1, part_of(piece, done, begin));
        if (status == NIB_OK && !split->drop_matches)
            status = encode_piece(encoder, stage + 1, part_of(piece, begin, end));
        from = done = end;
        matched = true;
    }
    if (status == NIB_OK && !split->drop_gaps)
        status = encode_piece(encoder, stage + 1, part_of(piece, done, piece.size));
    return status;
}

static nib_status encode_piece(struct encoder *encoder, size_t stage, struct piece piece)
{
    const struct nib_tokenizer *tokenizer = encoder->tokenizer;
    if (piece.size == 0)
        return NIB_OK;
    if (stage == tokenizer->stage_count)
        return nib_bpe_encode_word(tokenizer, &encoder->scratch, piece.bytes, piece.size, encoder->list,
                                   encoder->err);
    if (tokenizer->stages[stage].code)
        return encode_split(encoder, stage, piece);
    return encode_with_space(encoder, stage, piece);
}

// Moves *begin left over white space, not beyond `limit`.
static void strip_left(struct piece piece, size_t limit, size_t *begin)
{
    while (*begin > limit) {
        size_t at = *begin - 1;
        while (at > limit && (piece.seen[at] & 0xc0) == 0x80)
            at--;
        if (nib_utf8_space_at(piece.seen + at, piece.size - at) == 0)
            return;
        *begin = at;
    }
}

static void strip_right(struct piece piece, size_t *end)
{
    for (size_t length; (length = nib_utf8_space_at(piece.seen + *end, piece.size - *end)) > 0;)
        *end += length;
}

// Bytes that are not UTF-8 become U+001A. U+180E becomes U+200B, of its length and category: PCRE2's \s would take it
// for the white space it was before Unicode 6.3. NULL: out of memory. Returns `text` itself when nothing changes.
static const uint8_t *make_seen(const uint8_t *text, size_t size, uint8_t **copy)
{
    *copy = NULL;
    for (size_t at = 0, length; at < size; at += length) {
        bool whole = nib_utf8_scan(text + at, size - at, &length) == NIB_UTF8_WHOLE;
        if (whole && !(length == 3 && memcmp(text + at, "\xe1\xa0\x8e", 3) == 0))
            continue;
        if (!*copy) {
            *copy = malloc(size);
            if (!*copy)
                return NULL;
            memcpy(*copy, text, size);
        }
        memcpy(*copy + at, whole ? "\xe2\x80\x8b" : "\x1a\x1a\x1a", length);
    }
    return *copy ? *copy : text;
}

static nib_status encode_added(struct encoder *encoder, size_t set, struct piece piece);

// What lies between tokens that text is searched for as it is.
static nib_status encode_normalized(struct encoder *encoder, size_t set, struct piece piece)
{
    if (!encoder->tokenizer->nfc)
        return encode_added(encoder, set, piece);
    struct nib_bytes text = {0};
    uint8_t *copy = NULL;
    nib_status status = nib_normalize_nfc(piece.bytes, piece.size, &text, encoder->err);
    if (status == NIB_OK) {
        const uint8_t *bytes = (const uint8_t *)text.data, *seen = make_seen(bytes, text.size, &copy);
        status = seen ? encode_added(encoder, set, (struct piece){bytes, seen, text.size})
                      : nib_fail_memory(encoder->err, text.size, "text");
    }
    free(copy);
    nib_bytes_free(&text);
    return status;
}

static nib_status encode_between(struct encoder *encoder, size_t set, struct piece piece)
{
    return set == 0 ? encode_normalized(encoder, 1, piece) : encode_added(encoder, set + 1, piece);
}

// Cuts the text at the added tokens of sets[set] and on; what lies between goes to the splitter.
static nib_status encode_added(struct encoder *encoder, size_t set, struct piece piece)
{
    if (set == 2)
        return encode_piece(encoder, 0, piece);
    const struct nib_added_set *added = &encoder->tokenizer->added[set];
    nib_status status = NIB_OK;
    size_t done = 0;
    for (size_t at = 0; added->count > 0 && status == NIB_OK && at < piece.size;) {
        const struct nib_added_token *token = NULL;
        if (added->first[piece.bytes[at]])
            token = nib_added_set_match(added, &encoder->tokenizer->vocab, piece.bytes + at, piece.size - at);
        if (!token) {
            at++;
            continue;
        }
        size_t begin = at, end = at + token->size;
        at = end;
        if (token->strip_left)
            strip_left(piece, done, &begin);
        if (token->strip_right)
            strip_right(piece, &end);
        if (token->strip_left && done >= end) // white space itself, which the token before it has stripped
            continue;
        if (begin > done)
            status = encode_between(encoder, set, part_of(piece, done, begin));
        if (status == NIB_OK)
            status = nib_token_list_add(encoder->list, token->id, encoder->err);
        done = end;
    }
    return status == NIB_OK && done < piece.size ? encode_between(encoder, set, part_of(piece, done, piece.size))
                                                 : status;
}

static nib_status prepare(struct encoder *encoder, size_t size)
{
    encoder->match = pcre2_match_data_create(1, NULL);
    encoder->limits = pcre2_match_context_create(NULL);
    if (!encoder->match || !encoder->limits)
        return nib_fail_memory(encoder->err, sizeof(void *), "pattern matching");
    // One step back for every byte of a long word is normal; more than a few for each is a pattern gone wild.
    pcre2_set_match_limit(encoder->limits, (uint32_t)(1000000 + (size < 1 << 27 ? 16 * size : 1u << 31)));
    pcre2_set_heap_limit(encoder->limits, 512u << 10); // KiB
    return NIB_OK;
}

nib_status nib_tokenizer_encode(const struct nib_tokenizer *tokenizer, const char *text, size_t size,
                                unsigned flags, struct nib_token_list *list, struct nib_error *err)
{
    if (size > TEXT_LIMIT)
        return nib_fail(err, NIB_ERR_LIMIT, "text of %zu bytes, the limit is %zu", size, TEXT_LIMIT);
    if (size == 0)
        return NIB_OK;
    size_t before = list->count;
    struct encoder encoder = {.tokenizer = tokenizer, .list = list, .err = err};
    uint8_t *copy;
    struct piece whole = {(const uint8_t *)text, make_seen((const uint8_t *)text, size, &copy), size};
    if (!whole.seen)
        return nib_fail_memory(err, size, "text");
    nib_status status = prepare(&encoder, size);
    if (status == NIB_OK)
        status =
            flags & NIB_ENCODE_SPECIAL ? encode_added(&encoder, 0, whole) : encode_normalized(&encoder, 2, whole);
    if (status != NIB_OK)
        list->count = before;
    free(copy);
    pcre2_match_data_free(encoder.match);
    pcre2_match_context_free(encoder.limits);
    nib_bpe_scratch_free(&encoder.scratch);
    return status;
}
