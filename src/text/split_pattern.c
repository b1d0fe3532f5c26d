// Split patterns are written for other regex libraries than PCRE2. Most of their syntax means the same to all; this
// file copies that, respells what PCRE2 writes differently, and refuses the rest by name: a pattern that splits
// almost as it should gives ids that are almost right.
//
// One difference is not handled here: PCRE2's \s takes U+180E for white space, see the splitter.
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "text/split_class.h"

#define PATTERN_LIMIT 65536

static nib_status put(struct nib_pattern_reader *reader, const char *string)
{
    return nib_bytes_append(reader->out, string, strlen(string), reader->err);
}

// Copies the next n bytes.
static nib_status copy(struct nib_pattern_reader *reader, size_t n)
{
    const char *from = reader->pattern + reader->at;
    reader->at += n;
    return nib_bytes_append(reader->out, from, n, reader->err);
}

nib_status nib_pattern_refuse(const struct nib_pattern_reader *reader, const char *what)
{
    size_t rest = reader->size - reader->at;
    return nib_fail(reader->err, NIB_ERR_UNSUPPORTED, "split pattern: %s is not supported, at byte %zu: %.*s",
                    what, reader->at, (int)(rest < 24 ? rest : 24), reader->pattern + reader->at);
}

bool nib_pattern_begins(const struct nib_pattern_reader *reader, const char *prefix)
{
    size_t length = strlen(prefix);
    return reader->size - reader->at >= length && memcmp(reader->pattern + reader->at, prefix, length) == 0;
}

static nib_status translate_group(struct nib_pattern_reader *reader)
{
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (nib_pattern_begins(reader, same[i]))
            return copy(reader, strlen(same[i]));
    // Further in, how far the option reaches differs.
    if (nib_pattern_begins(reader, "(?i)") && reader->at == 0)
        return copy(reader, 4);
    if (nib_pattern_begins(reader, "(?"))
        return nib_pattern_refuse(reader, "this kind of group");
    reader->at++;
    return put(reader, "(?:"); // nothing refers back to a capture
}

// {n}, {n,} or {n,m}; the other kinds are literal text to some libraries and intervals to others.
static nib_status translate_interval(struct nib_pattern_reader *reader)
{
    size_t end = reader->at + 1;
    bool comma = false, digit = false;
    for (; end < reader->size && reader->pattern[end] != '}'; end++) {
        bool is_digit = isdigit((unsigned char)reader->pattern[end]) != 0;
        if (!is_digit && (reader->pattern[end] != ',' || comma || !digit))
            break;
        digit = digit || is_digit;
        comma = comma || !is_digit;
    }
    if (end == reader->size || reader->pattern[end] != '}' || !digit)
        return nib_pattern_refuse(reader, "'{' that begins no {n}, {n,} or {n,m}");
    char after = end + 1 < reader->size ? reader->pattern[end + 1] : '\0';
    // Ruby's syntax: "{n,m}+" repeats the repetition and "{n}?" makes it optional.
    if (reader->dialect == NIB_REGEX_ONIGURUMA && (after == '+' || (after == '?' && !comma)))
        return nib_pattern_refuse(reader, "a sign behind this interval");
    return copy(reader, end + 1 - reader->at);
}

static nib_status translate_escape(struct nib_pattern_reader *reader)
{
    if (nib_pattern_begins(reader, "\\A") || nib_pattern_begins(reader, "\\z"))
        return copy(reader, 2);
    if (nib_pattern_begins(reader, "\\w") || nib_pattern_begins(reader, "\\W")) {
        nib_status status = put(reader, nib_pattern_begins(reader, "\\w") ? "[" : "[^");
        if (status == NIB_OK)
            status = put(reader, nib_pattern_word_items(reader, false));
        reader->at += 2;
        return status == NIB_OK ? put(reader, "]") : status;
    }
    return nib_pattern_escape(reader, reader->out, NULL);
}

// ^ and $ know lines in Ruby's syntax and the whole text in Rust's; PCRE2's own $ is neither.
static nib_status translate_anchor(struct nib_pattern_reader *reader)
{
    bool begin = reader->pattern[reader->at++] == '^';
    if (reader->dialect == NIB_REGEX_ONIGURUMA)
        return put(reader, begin ? "(?m:^)" : "(?m:$)");
    return put(reader, begin ? "\\A" : "\\z");
}

static nib_status translate_next(struct nib_pattern_reader *reader)
{
    switch (reader->pattern[reader->at]) {
    case '(':
        return translate_group(reader);
    case '[':
        return nib_pattern_class(reader);
    case '{':
        return translate_interval(reader);
    case '\\':
        return translate_escape(reader);
    case '^':
    case '$':
        return translate_anchor(reader);
    default:
        return copy(reader, 1);
    }
}

nib_status nib_split_pattern_translate(const char *pattern, size_t size, enum nib_regex_dialect dialect,
                                       struct nib_bytes *out, struct nib_error *err)
{
    struct nib_pattern_reader reader = {pattern, size, 0, dialect, out, err};
    if (size > PATTERN_LIMIT)
        return nib_fail(err, NIB_ERR_LIMIT, "split pattern of %zu bytes, the limit is %d", size, PATTERN_LIMIT);
    if (!nib_utf8_valid(pattern, size))
        return nib_fail(err, NIB_ERR_FORMAT, "split pattern is not UTF-8");
    nib_status status = NIB_OK;
    while (status == NIB_OK && reader.at < size)
        status = translate_next(&reader);
    return status;
}

static nib_status compile(const struct nib_bytes *translated, pcre2_code **code, struct nib_error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return nib_fail_memory(err, translated->size, "a split pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int error;
    PCRE2_SIZE where;
    *code = pcre2_compile((PCRE2_SPTR)(translated->size ? translated->data : ""), translated->size,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where, context);
    pcre2_compile_context_free(context);
    if (!*code) {
        char reason[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "split pattern: %s, at byte %zu of its translation %.200s",
                        reason, where, translated->size ? translated->data : "");
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); // where there is no JIT, pcre2_match interprets
    return NIB_OK;
}

nib_status nib_split_pattern_compile(const char *pattern, size_t size, enum nib_regex_dialect dialect,
                                     pcre2_code **code, struct nib_error *err)
{
    struct nib_bytes translated = {0};
    nib_status status = nib_split_pattern_translate(pattern, size, dialect, &translated, err);
    if (status == NIB_OK)
        status = compile(&translated, code, err);
    nib_bytes_free(&translated);
    return status;
}
