#include "text/split_class.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

// Every character has exactly one general category, so the complement of a set of categories is the other ones.
// Grouped by the first letter; Cs cannot occur in UTF-8.
static const char categories_of[][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                        "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                        "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

#define CATEGORY_COUNT (sizeof categories_of / sizeof *categories_of)
#define ALL_CATEGORIES ((1u << CATEGORY_COUNT) - 1)

static const struct {
    const char *name, *category;
} long_names[] = {{"letter", "L"},           {"mark", "M"},          {"number", "N"},
                  {"punctuation", "P"},      {"punct", "P"},         {"symbol", "S"},
                  {"separator", "Z"},        {"other", "C"},         {"uppercaseletter", "Lu"},
                  {"lowercaseletter", "Ll"}, {"decimalnumber", "Nd"}};

// The categories that `name` (one or two letters) stands for; 0 if it is none.
static uint32_t category_mask(const char *name, size_t size)
{
    uint32_t mask = 0;
    for (size_t i = 0; size >= 1 && size <= 2 && i < CATEGORY_COUNT; i++)
        if (memcmp(categories_of[i], name, size) == 0)
            mask |= 1u << i;
    return mask;
}

static nib_status put(struct nib_bytes *out, const char *string, struct nib_error *err)
{
    return nib_bytes_append(out, string, strlen(string), err);
}

// Appends \p{…} for each category, or for each whole group of them: the items of a class.
static nib_status put_categories(struct nib_bytes *out, uint32_t mask, struct nib_error *err)
{
    // A class needs an item; no text contains a surrogate.
    nib_status status = mask == 0 ? put(out, "\\p{Cs}", err) : NIB_OK;
    for (size_t i = 0; status == NIB_OK && i < CATEGORY_COUNT; i++) {
        if (!(mask >> i & 1))
            continue;
        uint32_t group = category_mask(categories_of[i], 1);
        bool whole = (mask & group) == group;
        char item[8];
        snprintf(item, sizeof item, "\\p{%.*s}", whole ? 1 : 2, categories_of[i]);
        if (whole)
            mask &= ~group;
        status = put(out, item, err);
    }
    return status;
}

// Reads \pL, \p{Name}, \p{^Name}, \P…: *name gets the letters and digits of the name.
static nib_status read_property(struct nib_pattern_reader *reader, bool *negated, char name[static 64])
{
    const char *pattern = reader->pattern;
    size_t at = reader->at + 2, length = 0;
    *negated = pattern[reader->at + 1] == 'P';
    if (at < reader->size && isalpha((unsigned char)pattern[at])) {
        snprintf(name, 64, "%c", pattern[at]);
        reader->at = at + 1;
        return NIB_OK;
    }
    if (at == reader->size || pattern[at] != '{')
        return nib_pattern_refuse(reader, "this property");
    if (++at < reader->size && pattern[at] == '^') {
        *negated = !*negated;
        at++;
    }
    for (; at < reader->size && pattern[at] != '}'; at++) {
        bool filler = pattern[at] == ' ' || pattern[at] == '_' || pattern[at] == '-';
        if (!filler && ((!isalnum((unsigned char)pattern[at]) && pattern[at] != '=') || length == 63))
            return nib_pattern_refuse(reader, "this property");
        if (!filler)
            name[length++] = pattern[at];
    }
    name[length] = '\0';
    if (at == reader->size || length == 0)
        return nib_pattern_refuse(reader, "this property");
    reader->at = at + 1;
    return NIB_OK;
}

// A script: "\p{Han}" means the script extensions to PCRE2 but the script itself to the others.
static nib_status put_script(struct nib_pattern_reader *reader, struct nib_bytes *out, const char *name,
                             bool negated)
{
    const char *equals = strchr(name, '=');
    char item[80];
    snprintf(item, sizeof item, "\\%c{sc:%s}", negated ? 'P' : 'p', equals ? equals + 1 : name);
    return put(out, item, reader->err);
}

static nib_status translate_property(struct nib_pattern_reader *reader, struct nib_bytes *out,
                                     uint32_t *categories)
{
    char name[64];
    bool negated;
    nib_status status = read_property(reader, &negated, name);
    if (status != NIB_OK)
        return status;
    const char *category = name;
    for (size_t i = 0; i < sizeof long_names / sizeof *long_names; i++)
        if (strcasecmp(name, long_names[i].name) == 0)
            category = long_names[i].category;
    uint32_t mask = category_mask(category, strlen(category));
    if (mask == 0)
        return put_script(reader, out, name, negated);
    if (categories)
        *categories = negated ? ALL_CATEGORIES & ~mask : mask;
    char item[8];
    snprintf(item, sizeof item, "\\%c{%.2s}", negated ? 'P' : 'p', category);
    return put(out, item, reader->err);
}

// \xHH, \x{H…}, \uHHHH, \u{H…}: PCRE2 has the second only.
static nib_status translate_code_point(struct nib_pattern_reader *reader, struct nib_bytes *out)
{
    const char *digits = reader->pattern + reader->at + 2, *end = reader->pattern + reader->size;
    bool braced = digits < end && *digits == '{', short_x = !braced && reader->pattern[reader->at + 1] == 'x';
    size_t least = braced ? 1 : short_x ? 2 : 4, most = braced ? 8 : least, count = 0;
    uint32_t character = 0;
    for (digits += braced; digits < end && count < most && isxdigit((unsigned char)*digits); digits++, count++)
        character = character << 4 |
                    (uint32_t)(isdigit((unsigned char)*digits) ? *digits - '0' : (*digits | 32) - 'a' + 10);
    bool closed = !braced || (digits < end && *digits == '}');
    // Oniguruma's \x80 … \xff are bytes, not characters.
    bool byte = short_x && character > 0x7f && reader->dialect == NIB_REGEX_ONIGURUMA;
    if (count < least || !closed || byte)
        return nib_pattern_refuse(reader, "this character code");
    reader->at = (size_t)(digits - reader->pattern) + braced;
    char item[16];
    snprintf(item, sizeof item, "\\x{%x}", character);
    return put(out, item, reader->err);
}

nib_status nib_pattern_escape(struct nib_pattern_reader *reader, struct nib_bytes *out, uint32_t *categories)
{
    if (categories)
        *categories = 0;
    if (reader->at + 1 == reader->size)
        return nib_pattern_refuse(reader, "a backslash at the end");
    char letter = reader->pattern[reader->at + 1];
    if (letter == 'p' || letter == 'P')
        return translate_property(reader, out, categories);
    if (letter == 'x' || letter == 'u')
        return translate_code_point(reader, out);
    if (isalnum((unsigned char)letter) && !strchr("rntfadDsSv", letter))
        return nib_pattern_refuse(reader, "this escape sequence");
    if ((unsigned char)letter >= 0x80)
        return nib_pattern_refuse(reader, "a backslash before a character outside ASCII");
    reader->at += 2;
    if (letter == 'v') // one character here, a class to PCRE2
        return put(out, "\\x{b}", reader->err);
    return nib_bytes_append(out, (char[]){'\\', letter}, 2, reader->err);
}

// Rust's \w has the joiners besides; Oniguruma's has the numbers of Latin-1, outside classes only.
#define WORD_ITEMS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

const char *nib_pattern_word_items(const struct nib_pattern_reader *reader, bool in_class)
{
    if (reader->dialect == NIB_REGEX_RUST)
        return WORD_ITEMS "\\x{200c}\\x{200d}";
    return in_class ? WORD_ITEMS : WORD_ITEMS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
}

// One operand of an intersection: its items as PCRE2 spells them.
struct operand {
    struct nib_bytes items;
    bool negated;
    bool only_categories;
    uint32_t categories;
};

// Reads one item of a class and notes whether the operand still consists of categories alone.
static nib_status read_item(struct nib_pattern_reader *reader, struct operand *operand)
{
    uint32_t categories = 0;
    nib_status status;
    if (nib_pattern_begins(reader, "\\w")) {
        reader->at += 2;
        status = put(&operand->items, nib_pattern_word_items(reader, true), reader->err);
    } else if (reader->pattern[reader->at] == '\\') {
        status = nib_pattern_escape(reader, &operand->items, &categories);
    } else if (reader->pattern[reader->at] == '[') {
        status = nib_pattern_refuse(reader, "a class within a class");
    } else if (reader->dialect == NIB_REGEX_RUST &&
               (nib_pattern_begins(reader, "--") || nib_pattern_begins(reader, "~~"))) {
        status = nib_pattern_refuse(reader, "a difference of classes");
    } else {
        status = nib_bytes_append(&operand->items, reader->pattern + reader->at, 1, reader->err);
        reader->at++;
    }
    operand->only_categories = operand->only_categories && categories != 0;
    operand->categories |= categories;
    return status;
}

// Reads up to "]" or "&&". A "]" in the first place is a literal one.
static nib_status read_operand(struct nib_pattern_reader *reader, struct operand *operand, bool first_is_literal)
{
    *operand = (struct operand){.only_categories = true};
    nib_status status = NIB_OK;
    bool literal = first_is_literal;
    while (status == NIB_OK) {
        if (reader->at == reader->size)
            return nib_pattern_refuse(reader, "a class without an end");
        if (nib_pattern_begins(reader, "&&") || (reader->pattern[reader->at] == ']' && !literal))
            break;
        literal = false;
        status = read_item(reader, operand);
    }
    return status;
}

// Behind "&&": a bracketed operand or a plain one.
static nib_status read_right_operand(struct nib_pattern_reader *reader, struct operand *operand)
{
    *operand = (struct operand){0};
    if (!nib_pattern_begins(reader, "["))
        return read_operand(reader, operand, false);
    bool negated = nib_pattern_begins(reader, "[^");
    reader->at += negated ? 2 : 1;
    nib_status status = read_operand(reader, operand, true);
    if (status != NIB_OK)
        return status;
    if (nib_pattern_begins(reader, "&&"))
        return nib_pattern_refuse(reader, "an intersection within an intersection");
    operand->negated = negated;
    reader->at++;
    if (!nib_pattern_begins(reader, "&&") && !nib_pattern_begins(reader, "]"))
        return nib_pattern_refuse(reader, "more behind a class within a class");
    return NIB_OK;
}

// Appends the items of everything outside the operand.
static nib_status put_complement(struct nib_pattern_reader *reader, const struct operand *operand)
{
    if (operand->negated && operand->items.size > 0)
        return nib_bytes_append(reader->out, operand->items.data, operand->items.size, reader->err);
    if (operand->only_categories && operand->items.size > 0)
        return put_categories(reader->out, ALL_CATEGORIES & ~operand->categories, reader->err);
    return nib_pattern_refuse(reader, "an intersection of other than categories and negated classes");
}

// A && B is what lies neither outside A nor outside B: [^outside A, outside B], one class, as fast as any other.
static nib_status translate_intersection(struct nib_pattern_reader *reader, const struct operand *first,
                                         bool negated)
{
    nib_status status = put(reader->out, negated ? "[" : "[^", reader->err);
    if (status == NIB_OK)
        status = put_complement(reader, first);
    while (status == NIB_OK && nib_pattern_begins(reader, "&&")) {
        struct operand operand;
        reader->at += 2;
        status = read_right_operand(reader, &operand);
        if (status == NIB_OK)
            status = put_complement(reader, &operand);
        nib_bytes_free(&operand.items);
    }
    return status;
}

nib_status nib_pattern_class(struct nib_pattern_reader *reader)
{
    bool negated = nib_pattern_begins(reader, "[^");
    reader->at += negated ? 2 : 1;
    struct operand first;
    nib_status status = read_operand(reader, &first, true);
    if (status == NIB_OK && nib_pattern_begins(reader, "&&")) {
        status = translate_intersection(reader, &first, negated);
    } else if (status == NIB_OK) {
        status = put(reader->out, negated ? "[^" : "[", reader->err);
        if (status == NIB_OK)
            status = nib_bytes_append(reader->out, first.items.data, first.items.size, reader->err);
    }
    nib_bytes_free(&first.items);
    reader->at++;
    return status == NIB_OK ? put(reader->out, "]", reader->err) : status;
}
