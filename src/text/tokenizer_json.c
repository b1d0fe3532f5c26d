// Hugging Face's tokenizer.json, as far as it is byte-level BPE: model, pre_tokenizer and added_tokens are read,
// normalizers but NFC are refused, the post-processor (which adds tokens around a text) and the decoder are not needed.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct reader {
    struct nib_tokenizer *tokenizer;
    int16_t byte_of[0x144]; // the byte that a character of a token's spelling stands for; -1: none
    bool byte_level;        // the ByteLevel stage has been seen
    struct nib_error *err;
};

static bool is_null(const json_t *value)
{
    return !value || json_is_null(value);
}

// A boolean that may be left out.
static nib_status read_flag(struct reader *reader, const json_t *object, const char *where, const char *key,
                            bool otherwise, bool *flag)
{
    const json_t *value = json_object_get(object, key);
    *flag = value ? json_is_true(value) : otherwise;
    return is_null(value) || json_is_boolean(value)
               ? NIB_OK
               : nib_fail(reader->err, NIB_ERR_FORMAT, "%s.%s is not a boolean", where, key);
}

// The `type` of a component, for messages too.
static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "(no type)";
}

// ByteLevel spells bytes that print as themselves, and the others, in order, from U+0100 on.
static void list_byte_characters(struct reader *reader)
{
    memset(reader->byte_of, 0xff, sizeof reader->byte_of);
    int next = 0x100;
    for (int16_t byte = 0; byte < 256; byte++) {
        bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        reader->byte_of[prints ? byte : next++] = byte;
    }
}

// Writes the bytes that a token's spelling stands for to `bytes` [size]; false if it is not spelt in byte characters.
static bool read_spelling(const struct reader *reader, const char *text, size_t size, uint8_t *bytes,
                          size_t *count)
{
    const uint8_t *p = (const uint8_t *)text;
    *count = 0;
    for (size_t at = 0; at < size; at++) {
        unsigned character = p[at];
        if (character >= 0x80) { // jansson has checked that it is UTF-8
            if (character >= 0xe0)
                return false;
            character = (character & 0x1f) << 6 | (p[++at] & 0x3f);
        }
        if (character >= 0x144 || reader->byte_of[character] < 0)
            return false;
        bytes[(*count)++] = (uint8_t)reader->byte_of[character];
    }
    return true;
}

static nib_status add_vocab_token(struct reader *reader, const char *spelling, const json_t *id, uint8_t *bytes)
{
    struct nib_vocab *vocab = &reader->tokenizer->vocab;
    size_t size = strlen(spelling), count;
    if (!json_is_integer(id))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "model.vocab: the id of \"%.100s\" is not an integer",
                        spelling);
    bool merged = read_spelling(reader, spelling, size, bytes, &count);
    nib_status status =
        merged && count > 0
            ? nib_vocab_add(vocab, json_integer_value(id), bytes, count, NIB_TOKEN_MERGED, reader->err)
            : nib_vocab_add(vocab, json_integer_value(id), spelling, size, 0, reader->err);
    return status == NIB_OK ? NIB_OK : nib_fail_context(reader->err, "model.vocab \"%.100s\"", spelling);
}

static nib_status read_vocab(struct reader *reader, const json_t *entries)
{
    const char *spelling;
    json_t *id;
    size_t longest = 0;
    if (!json_is_object(entries))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "model.vocab is not an object");
    json_object_foreach((json_t *)entries, spelling, id)
    {
        size_t size = strlen(spelling);
        longest = size > longest ? size : longest;
    }
    uint8_t *bytes = malloc(longest + 1);
    if (!bytes)
        return nib_fail_memory(reader->err, longest + 1, "a token");
    nib_status status = NIB_OK;
    json_object_foreach((json_t *)entries, spelling, id)
    {
        status = add_vocab_token(reader, spelling, id, bytes);
        if (status != NIB_OK)
            break;
    }
    free(bytes);
    return status == NIB_OK ? nib_vocab_index(&reader->tokenizer->vocab, reader->err) : status;
}

// The two halves of a merge, written "a b" or ["a", "b"].
static bool split_merge(const json_t *merge, const char *half[2], size_t size[2])
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            half[i] = json_string_value(json_array_get(merge, i));
            size[i] = json_string_length(json_array_get(merge, i));
        }
        return half[0] && half[1];
    }
    const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return false;
    half[0] = text;
    half[1] = space + 1;
    size[0] = (size_t)(space - text);
    size[1] = json_string_length(merge) - size[0] - 1;
    return true;
}

// Finds both halves and what they make in the vocabulary; `bytes` has room for all of them.
static nib_status add_merge(struct reader *reader, size_t index, uint32_t rank, const char *half[2],
                            const size_t size[2], uint8_t *bytes)
{
    struct nib_vocab *vocab = &reader->tokenizer->vocab;
    int32_t ids[2];
    size_t total = 0, count;
    for (size_t i = 0; i < 2; i++) {
        bool spelt = read_spelling(reader, half[i], size[i], bytes + total, &count) && count > 0;
        ids[i] = spelt ? nib_vocab_find(vocab, bytes + total, count) : -1;
        if (ids[i] < 0)
            return nib_fail(reader->err, NIB_ERR_FORMAT, "model.merges[%zu]: \"%.*s\" is not in the vocabulary",
                            index, (int)(size[i] < 100 ? size[i] : 100), half[i]);
        total += count;
    }
    int32_t id = nib_vocab_find(vocab, bytes, total);
    if (id < 0)
        return nib_fail(reader->err, NIB_ERR_FORMAT,
                        "model.merges[%zu]: the vocabulary lacks what it makes of %d and %d", index, ids[0],
                        ids[1]);
    nib_vocab_add_merge(vocab, ids[0], ids[1], rank, id);
    return NIB_OK;
}

static nib_status read_merge(struct reader *reader, size_t index, uint32_t rank, const json_t *merge)
{
    const char *half[2];
    size_t size[2];
    uint8_t small[256], *bytes = small;
    if (!split_merge(merge, half, size))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]",
                        index);
    if (size[0] + size[1] > sizeof small)
        bytes = malloc(size[0] + size[1]);
    if (!bytes)
        return nib_fail_memory(reader->err, size[0] + size[1], "a merge");
    nib_status status = add_merge(reader, index, rank, half, size, bytes);
    if (bytes != small)
        free(bytes);
    return status;
}

static nib_status read_merges(struct reader *reader, const json_t *merges)
{
    if (!json_is_array(merges))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "model.merges is not an array");
    size_t count = json_array_size(merges);
    uint32_t rank = 0;
    nib_status status = nib_vocab_reserve_merges(&reader->tokenizer->vocab, count, reader->err);
    for (size_t i = 0; status == NIB_OK && i < count; i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *text = json_string_value(merge);
        if (!text || strncmp(text, "#version", 8) != 0) // a line of merges.txt that some files still carry
            status = read_merge(reader, i, rank++, merge);
    }
    return status;
}

// Settings that change the ids must be at rest.
static nib_status check_model_settings(struct reader *reader, const json_t *model)
{
    static const char *const at_rest[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                          "byte_fallback"};
    for (size_t i = 0; i < sizeof at_rest / sizeof *at_rest; i++) {
        const json_t *value = json_object_get(model, at_rest[i]);
        bool empty = is_null(value) || json_is_false(value) ||
                     (json_is_number(value) && json_number_value(value) == 0) ||
                     (json_is_string(value) && json_string_length(value) == 0);
        if (!empty)
            return nib_fail(reader->err, NIB_ERR_UNSUPPORTED, "model.%s is set, which is not supported",
                            at_rest[i]);
    }
    return NIB_OK;
}

static nib_status read_unknown(struct reader *reader, const json_t *model)
{
    const json_t *token = json_object_get(model, "unk_token");
    reader->tokenizer->unknown = -1;
    if (is_null(token))
        return NIB_OK;
    if (!json_is_string(token))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "model.unk_token is not a string");
    const json_t *id = json_object_get(json_object_get(model, "vocab"), json_string_value(token));
    if (id)
        reader->tokenizer->unknown = (int32_t)json_integer_value(id); // checked when it was added
    return NIB_OK;
}

static nib_status read_model(struct reader *reader, const json_t *model)
{
    if (!json_is_object(model))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "no model object: not a tokenizer.json");
    if (json_object_get(model, "type") && strcmp(type_of(model), "BPE") != 0)
        return nib_fail(reader->err, NIB_ERR_UNSUPPORTED, "model type %.100s is not supported, only BPE is",
                        type_of(model));
    nib_status status = check_model_settings(reader, model);
    if (status == NIB_OK)
        status = read_flag(reader, model, "model", "ignore_merges", false, &reader->tokenizer->whole_words);
    if (status == NIB_OK)
        status = read_flag(reader, model, "model", "fuse_unk", false, &reader->tokenizer->fuse_unknown);
    if (status == NIB_OK)
        status = read_vocab(reader, json_object_get(model, "vocab"));
    if (status == NIB_OK)
        status = read_merges(reader, json_object_get(model, "merges"));
    return status == NIB_OK ? read_unknown(reader, model) : status;
}

// The next stage, or NULL and an error.
static struct nib_split_stage *add_stage(struct reader *reader)
{
    struct nib_tokenizer *tokenizer = reader->tokenizer;
    if (tokenizer->stage_count < NIB_SPLIT_STAGES)
        return &tokenizer->stages[tokenizer->stage_count++];
    nib_fail(reader->err, NIB_ERR_LIMIT, "pre_tokenizer has more than %d stages", NIB_SPLIT_STAGES);
    return NULL;
}

static nib_status read_split_pattern(struct reader *reader, const json_t *pattern, pcre2_code **code)
{
    const json_t *regex = json_object_get(pattern, "Regex"), *literal = json_object_get(pattern, "String");
    if (json_is_string(regex))
        return nib_split_pattern_compile(json_string_value(regex), json_string_length(regex), NIB_REGEX_ONIGURUMA,
                                         code, reader->err);
    if (!json_is_string(literal))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "pre_tokenizer: Split has no pattern of Regex or String");
    struct nib_bytes escaped = {0};
    nib_status status = NIB_OK;
    const char *text = json_string_value(literal);
    for (size_t i = 0; status == NIB_OK && text[i]; i++) {
        bool plain = (unsigned char)text[i] >= 0x80 || strchr("\\^$.[]|()?*+{}", text[i]) == NULL;
        status =
            nib_bytes_append(&escaped, plain ? text + i : (char[]){'\\', text[i]}, plain ? 1 : 2, reader->err);
    }
    if (status == NIB_OK)
        status = nib_split_pattern_compile(escaped.data, escaped.size, NIB_REGEX_ONIGURUMA, code, reader->err);
    nib_bytes_free(&escaped);
    return status;
}

static nib_status read_split(struct reader *reader, const json_t *split)
{
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    struct nib_split_stage *stage;
    bool invert;
    nib_status status = read_flag(reader, split, "pre_tokenizer", "invert", false, &invert);
    if (status != NIB_OK)
        return status;
    if (!(stage = add_stage(reader)))
        return NIB_ERR_LIMIT;
    if (!behavior)
        return nib_fail(reader->err, NIB_ERR_FORMAT, "pre_tokenizer: Split has no behavior");
    if (strcmp(behavior, "Removed") == 0) {
        stage->drop_gaps = invert;
        stage->drop_matches = !invert;
    } else if (strcmp(behavior, "Isolated") != 0) {
        return nib_fail(reader->err, NIB_ERR_UNSUPPORTED,
                        "pre_tokenizer: Split behavior %.100s is not supported, only Isolated and Removed are",
                        behavior);
    }
    return read_split_pattern(reader, json_object_get(split, "pattern"), &stage->code);
}

static nib_status read_byte_level(struct reader *reader, const json_t *byte_level)
{
    struct nib_split_stage *stage;
    bool prefix, use_regex;
    nib_status status = read_flag(reader, byte_level, "pre_tokenizer", "add_prefix_space", true, &prefix);
    if (status == NIB_OK)
        status = read_flag(reader, byte_level, "pre_tokenizer", "use_regex", true, &use_regex);
    if (status != NIB_OK)
        return status;
    reader->byte_level = true;
    if (prefix && !add_stage(reader)) // a stage without code: the space
        return NIB_ERR_LIMIT;
    if (!use_regex)
        return NIB_OK;
    if (!(stage = add_stage(reader)))
        return NIB_ERR_LIMIT;
    return nib_split_pattern_compile(GPT2_PATTERN, strlen(GPT2_PATTERN), NIB_REGEX_ONIGURUMA, &stage->code,
                                     reader->err);
}

static nib_status read_pre_tokenizer(struct reader *reader, const json_t *pre_tokenizer, int depth)
{
    const char *type = type_of(pre_tokenizer);
    if (reader->byte_level)
        return nib_fail(reader->err, NIB_ERR_UNSUPPORTED, "pre_tokenizer: %.100s behind ByteLevel", type);
    if (strcmp(type, "Split") == 0)
        return read_split(reader, pre_tokenizer);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(reader, pre_tokenizer);
    const json_t *list = json_object_get(pre_tokenizer, "pretokenizers");
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth == NIB_SPLIT_STAGES)
        return nib_fail(reader->err, NIB_ERR_UNSUPPORTED,
                        "pre_tokenizer %.100s is not supported, only Sequence, Split and ByteLevel are", type);
    nib_status status = NIB_OK;
    for (size_t i = 0; status == NIB_OK && i < json_array_size(list); i++)
        status = read_pre_tokenizer(reader, json_array_get(list, i), depth + 1);
    return status;
}

// An added token may be one of the vocabulary's.
static nib_status enter_added(struct reader *reader, const json_t *vocab_entry, const char *text, size_t size,
                              int64_t id, bool special)
{
    struct nib_vocab *vocab = &reader->tokenizer->vocab;
    uint32_t flags = special ? NIB_TOKEN_SPECIAL : 0;
    if (!vocab_entry)
        return nib_vocab_add(vocab, id, text, size, flags, reader->err);
    if (json_integer_value(vocab_entry) != id)
        return nib_fail(reader->err, NIB_ERR_FORMAT, "its id is %lld here and %lld in model.vocab", (long long)id,
                        (long long)json_integer_value(vocab_entry));
    vocab->tokens[id].flags |= flags;
    return NIB_OK;
}

static nib_status read_added_token(struct reader *reader, const json_t *entry, const json_t *vocab_entries)
{
    const json_t *content = json_object_get(entry, "content"), *id = json_object_get(entry, "id");
    if (!json_is_string(content) || !json_is_integer(id))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "no content string or no id");
    const char *text = json_string_value(content);
    size_t size = json_string_length(content);
    struct nib_added_token token = {0};
    bool special, normalized, single_word;
    nib_status status = read_flag(reader, entry, text, "special", false, &special);
    if (status == NIB_OK)
        status = read_flag(reader, entry, text, "normalized", !special, &normalized);
    if (status == NIB_OK)
        status = read_flag(reader, entry, text, "lstrip", false, &token.strip_left);
    if (status == NIB_OK)
        status = read_flag(reader, entry, text, "rstrip", false, &token.strip_right);
    if (status == NIB_OK)
        status = read_flag(reader, entry, text, "single_word", false, &single_word);
    if (status == NIB_OK && single_word)
        status = nib_fail(reader->err, NIB_ERR_UNSUPPORTED, "single_word is not supported");
    if (status == NIB_OK)
        status =
            enter_added(reader, json_object_get(vocab_entries, text), text, size, json_integer_value(id), special);
    if (status != NIB_OK)
        return status;
    token.id = (int32_t)json_integer_value(id);
    // A token that is looked for in normalised text is looked for in that form.
    struct nib_bytes form = {0};
    if (normalized && reader->tokenizer->nfc) {
        status = nib_normalize_nfc((const uint8_t *)text, size, &form, reader->err);
        text = form.data;
        size = form.size;
    }
    if (status == NIB_OK)
        status = nib_added_set_add(&reader->tokenizer->added[normalized], &reader->tokenizer->vocab, text, size,
                                   token, reader->err);
    nib_bytes_free(&form);
    return status;
}

static nib_status read_added_tokens(struct reader *reader, const json_t *list, const json_t *vocab_entries)
{
    if (!is_null(list) && !json_is_array(list))
        return nib_fail(reader->err, NIB_ERR_FORMAT, "added_tokens is not an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *text = json_string_value(json_object_get(entry, "content"));
        if (read_added_token(reader, entry, vocab_entries) != NIB_OK)
            return nib_fail_context(reader->err, "added_tokens[%zu] \"%.100s\"", i, text ? text : "");
    }
    return NIB_OK;
}

// None, NFC, or a sequence of such.
static nib_status read_normalizer(struct reader *reader, const json_t *normalizer, int depth)
{
    if (is_null(normalizer))
        return NIB_OK;
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (strcmp(type_of(normalizer), "NFC") == 0) {
        reader->tokenizer->nfc = true;
        return NIB_OK;
    }
    if (!json_is_array(list) || depth > 0)
        return nib_fail(reader->err, NIB_ERR_UNSUPPORTED, "normalizer %.100s is not supported",
                        type_of(normalizer));
    nib_status status = NIB_OK;
    for (size_t i = 0; status == NIB_OK && i < json_array_size(list); i++)
        status = read_normalizer(reader, json_array_get(list, i), depth + 1);
    return status;
}

static nib_status read_root(struct reader *reader, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    nib_status status = read_normalizer(reader, json_object_get(root, "normalizer"), 0);
    if (status == NIB_OK)
        status = read_model(reader, model);
    if (status == NIB_OK)
        status = read_pre_tokenizer(reader, json_object_get(root, "pre_tokenizer"), 0);
    if (status == NIB_OK && !reader->byte_level)
        status = nib_fail(reader->err, NIB_ERR_UNSUPPORTED, "pre_tokenizer has no ByteLevel: not byte-level BPE");
    if (status == NIB_OK)
        status = read_added_tokens(reader, json_object_get(root, "added_tokens"), json_object_get(model, "vocab"));
    return status;
}

nib_status nib_tokenizer_read_json(struct nib_tokenizer *tokenizer, const char *bytes, size_t size,
                                   struct nib_error *err)
{
    json_error_t problem;
    struct reader reader = {.tokenizer = tokenizer, .err = err};
    json_t *root = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        return nib_fail(err, NIB_ERR_FORMAT, "line %d, column %d: %s", problem.line, problem.column, problem.text);
    list_byte_characters(&reader);
    nib_status status = read_root(&reader, root);
    json_decref(root);
    return status;
}
