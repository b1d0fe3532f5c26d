// Regular expressions of the "pattern" keyword (the common ground of ECMA-262 and everybody else), over the characters
// of a JSON string.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/json_schema.h"

#define MAX_REPEATS 1000
#define MAX_RANGES 64

// ---- characters as JSON writes them ----

static void put_escaped(struct nib_rules *rules, int32_t from, uint32_t c, int32_t to)
{
    static const char shorts[][2] = {{'"', '"'}, {'\\', '\\'}, {8, 'b'}, {12, 'f'},
                                     {10, 'n'},  {13, 'r'},    {9, 't'}};
    char text[8];
    snprintf(text, sizeof text, "\\u%04x", c);
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++)
        if ((unsigned char)shorts[i][0] == c)
            snprintf(text, sizeof text, "\\%c", shorts[i][1]);
    size_t size = strlen(text);
    int32_t last = nib_rules_literal(rules, from, text, size - 1);
    nib_rules_bytes(rules, last, text[size - 1], text[size - 1], to);
}

// Code points of one UTF-8 length, whose bytes but the first `same` may differ freely or not: split until they do.
static void put_utf8(struct nib_rules *rules, int32_t from, uint32_t low, uint32_t high, int size, int32_t to)
{
    static const unsigned leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int tail = size - 1; tail > 0; tail--) {
        uint32_t mask = (1u << (6 * tail)) - 1;
        if ((low & ~mask) == (high & ~mask))
            continue; // they agree above the last `tail` bytes
        if (low & mask) {
            put_utf8(rules, from, low, low | mask, size, to);
            put_utf8(rules, from, (low | mask) + 1, high, size, to);
            return;
        }
        if ((high & mask) != mask) {
            put_utf8(rules, from, low, (high & ~mask) - 1, size, to);
            put_utf8(rules, from, high & ~mask, high, size, to);
            return;
        }
    }
    for (int i = 0; i < size; i++) {
        int shift = 6 * (size - 1 - i);
        unsigned lead = i ? 0x80 : leads[size], bits = i ? 0x3f : 0xff;
        int32_t next = i == size - 1 ? to : nib_rules_state(rules);
        nib_rules_bytes(rules, from, (int)(lead | ((low >> shift) & bits)), (int)(lead | ((high >> shift) & bits)),
                        next);
        from = next;
    }
}

void nib_json_characters(struct nib_rules *rules, int32_t from, uint32_t low, uint32_t high, int32_t to)
{
    static const struct {
        uint32_t first, last;
        int size; // 0: escaped one by one
    } parts[] = {{0, 0x1f, 0},        {0x20, 0x21, 1},       {0x22, 0x22, 0},  {0x23, 0x5b, 1},
                 {0x5c, 0x5c, 0},     {0x5d, 0x7f, 1},       {0x80, 0x7ff, 2}, {0x800, 0xd7ff, 3},
                 {0xe000, 0xffff, 3}, {0x10000, 0x10ffff, 4}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t first = low > parts[i].first ? low : parts[i].first;
        uint32_t last = high < parts[i].last ? high : parts[i].last;
        if (first > last)
            continue;
        if (parts[i].size == 1)
            nib_rules_bytes(rules, from, (int)first, (int)last, to);
        else if (parts[i].size)
            put_utf8(rules, from, first, last, parts[i].size, to);
        for (uint32_t c = first; !parts[i].size && c <= last; c++)
            put_escaped(rules, from, c, to);
    }
}

// ---- the expression ----

struct parser {
    struct nib_rules *rules;
    const unsigned char *pattern, *at, *end;
    const char *where;
    int depth;
    nib_status status;
    struct nib_error *err;
};

struct ranges {
    struct {
        uint32_t low, high;
    } items[MAX_RANGES];
    int count;
};

static void unsupported(struct parser *p, const char *what)
{
    if (!p->status)
        p->status = nib_fail(p->err, NIB_ERR_UNSUPPORTED, "pattern at %s: %s is not supported (byte %d)", p->where,
                             what, (int)(p->at - p->pattern));
}

static void add_range(struct parser *p, struct ranges *ranges, uint32_t low, uint32_t high)
{
    if (ranges->count == MAX_RANGES) {
        unsupported(p, "a class of so many ranges");
        return;
    }
    ranges->items[ranges->count].low = low;
    ranges->items[ranges->count++].high = high;
}

static uint32_t read_character(struct parser *p)
{
    unsigned char lead = *p->at++;
    int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    uint32_t c = more ? lead & (0x3fu >> more) : lead;
    for (; more > 0 && p->at < p->end; more--)
        c = c << 6 | (*p->at++ & 0x3f);
    return c;
}

static int compare_ranges(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static void negate(struct parser *p, struct ranges *ranges)
{
    struct ranges others = {.count = 0};
    uint32_t next = 0;
    qsort(ranges->items, (size_t)ranges->count, sizeof *ranges->items, compare_ranges);
    for (int i = 0; i < ranges->count; i++) {
        if (ranges->items[i].low > next)
            add_range(p, &others, next, ranges->items[i].low - 1);
        if (ranges->items[i].high >= next)
            next = ranges->items[i].high + 1;
    }
    if (next <= 0x10ffff)
        add_range(p, &others, next, 0x10ffff);
    *ranges = others;
}

static bool add_class(struct parser *p, struct ranges *ranges, unsigned char letter)
{
    // All of ECMA-262's white space: what \S leaves out, too.
    static const uint16_t spaces[][2] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                                         {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                         {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    struct ranges class = {.count = 0};
    switch (letter | 0x20) {
    case 'd':
        add_range(p, &class, '0', '9');
        break;
    case 'w':
        add_range(p, &class, '0', '9');
        add_range(p, &class, 'A', 'Z');
        add_range(p, &class, '_', '_');
        add_range(p, &class, 'a', 'z');
        break;
    case 's':
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
            add_range(p, &class, spaces[i][0], spaces[i][1]);
        break;
    default:
        return false;
    }
    if (letter < 'a')
        negate(p, &class);
    for (int i = 0; i < class.count; i++)
        add_range(p, ranges, class.items[i].low, class.items[i].high);
    return true;
}

static int hex(struct parser *p, int digits)
{
    char text[8] = "";
    if (p->end - p->at < digits) {
        unsupported(p, "an unfinished escape");
        return 0;
    }
    memcpy(text, p->at, (size_t)digits);
    if (strspn(text, "0123456789abcdefABCDEF") != (size_t)digits)
        unsupported(p, "this escape");
    p->at += digits;
    return (int)strtol(text, NULL, 16);
}

// Behind a backslash. Classes go to `ranges`, a single character is returned (or -1).
static int64_t read_escape(struct parser *p, struct ranges *ranges)
{
    static const char letters[] = "nrtfv", values[] = "\n\r\t\f\v";
    if (p->at >= p->end) {
        unsupported(p, "a backslash at the end");
        return -1;
    }
    unsigned char c = *p->at++;
    if (add_class(p, ranges, c))
        return -1;
    const char *known = c ? strchr(letters, c) : NULL;
    if (known)
        return values[known - letters];
    if (c == 'u' || c == 'x')
        return hex(p, c == 'u' ? 4 : 2);
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter)
        unsupported(p, "this escape");
    return c;
}

static void read_class(struct parser *p, struct ranges *ranges)
{
    bool others = p->at < p->end && *p->at == '^';
    p->at += others;
    while (p->at < p->end && *p->at != ']' && !p->status) {
        int64_t low = *p->at == '\\' ? (p->at++, read_escape(p, ranges)) : read_character(p);
        if (low < 0)
            continue;
        int64_t high = low;
        if (p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            high = *p->at == '\\' ? (p->at++, read_escape(p, ranges)) : read_character(p);
        }
        if (high < low)
            unsupported(p, "this range");
        else
            add_range(p, ranges, (uint32_t)low, (uint32_t)high);
    }
    if (p->at >= p->end)
        unsupported(p, "a class without an end");
    else
        p->at++;
    if (others)
        negate(p, ranges);
}

static int32_t read_alternatives(struct parser *p, int32_t from);

static int32_t read_group(struct parser *p, int32_t from)
{
    if (p->end - p->at > 1 && p->at[0] == '?') {
        if (p->at[1] != ':') {
            unsupported(p, "this kind of group");
            return from;
        }
        p->at += 2;
    }
    if (++p->depth > 50)
        unsupported(p, "nesting so deep");
    int32_t to = p->status ? from : read_alternatives(p, from);
    p->depth--;
    if (!p->status && (p->at >= p->end || *p->at != ')'))
        unsupported(p, "a group without an end");
    p->at++;
    return to;
}

static int32_t put_ranges(struct parser *p, int32_t from, const struct ranges *ranges)
{
    int32_t to = nib_rules_state(p->rules);
    bool possible = false; // no text has halves of surrogate pairs
    for (int i = 0; i < ranges->count; i++)
        possible |= ranges->items[i].low < 0xd800 || ranges->items[i].high > 0xdfff;
    if (!possible)
        unsupported(p, "what no character matches");
    for (int i = 0; i < ranges->count; i++)
        nib_json_characters(p->rules, from, ranges->items[i].low, ranges->items[i].high, to);
    return to;
}

static int32_t read_atom(struct parser *p, int32_t from)
{
    struct ranges ranges = {.count = 0};
    unsigned char c = *p->at;
    if (strchr("*+?{^$", c) && c) {
        unsupported(p, "this sign here");
        return from;
    }
    if (c == '(') {
        p->at++;
        return read_group(p, from);
    }
    if (c == '[') {
        p->at++;
        read_class(p, &ranges);
    } else if (c == '.') {
        p->at++;
        add_range(p, &ranges, '\n', '\n');
        add_range(p, &ranges, '\r', '\r');
        add_range(p, &ranges, 0x2028, 0x2029);
        negate(p, &ranges);
    } else if (c == '\\') {
        p->at++;
        int64_t one = read_escape(p, &ranges);
        if (one >= 0)
            add_range(p, &ranges, (uint32_t)one, (uint32_t)one);
    } else {
        uint32_t one = read_character(p);
        add_range(p, &ranges, one, one);
    }
    return p->status ? from : put_ranges(p, from, &ranges);
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

// {m}, {m,} or {m,n}; most -1: any number.
static void read_counts(struct parser *p, int *least, int *most)
{
    char *end;
    unsigned char c = p->at < p->end ? *p->at : 0;
    *least = c == '*' || c == '?' ? 0 : 1;
    *most = c == '*' || c == '+' ? -1 : 1;
    if (c == '*' || c == '+' || c == '?') {
        p->at++;
    } else if (c == '{') {
        bool counted = is_digit(p->at[1]);
        long low = strtol((const char *)p->at + 1, &end, 10), high = low;
        if (*end == ',' && end[1] == '}') {
            high = -1;
            end++;
        } else if (*end == ',') {
            counted = counted && is_digit((unsigned char)end[1]);
            high = strtol(end + 1, &end, 10);
        }
        if (!counted || *end != '}' || low > MAX_REPEATS || high > MAX_REPEATS || (high >= 0 && high < low)) {
            unsupported(p, "this repetition");
            return;
        }
        *least = (int)low;
        *most = (int)high;
        p->at = (const unsigned char *)end + 1;
    } else {
        return;
    }
    if (p->at < p->end && *p->at == '?') // lazy: the same strings
        p->at++;
}

// An atom with its quantifier: the atom is read once for each copy.
static int32_t read_repeated(struct parser *p, int32_t from)
{
    const unsigned char *atom = p->at, *behind;
    int least, most;
    struct nib_rules *rules = p->rules;
    int32_t start = nib_rules_state(rules), once = read_atom(p, start), end = nib_rules_state(rules);
    if (!p->status)
        read_counts(p, &least, &most);
    if (p->status)
        return from;
    behind = p->at;
    nib_rules_skip(rules, from, start);
    if (least == 0)
        nib_rules_skip(rules, from, end);
    for (int i = 1; (i < least || i < most) && !p->status && !rules->failed; i++) {
        if (i >= least)
            nib_rules_skip(rules, once, end);
        p->at = atom;
        start = nib_rules_state(rules);
        nib_rules_skip(rules, once, start);
        once = read_atom(p, start);
    }
    if (most < 0)
        nib_rules_skip(rules, once, start);
    if (most != 0)
        nib_rules_skip(rules, once, end);
    p->at = behind;
    return end;
}

static int32_t read_sequence(struct parser *p, int32_t from)
{
    while (p->at < p->end && *p->at != '|' && *p->at != ')' && !p->status && !p->rules->failed &&
           !(p->depth == 0 && *p->at == '$'))
        from = read_repeated(p, from);
    return from;
}

static void any_characters(struct parser *p, int32_t at)
{
    nib_json_characters(p->rules, at, 0, 0x10ffff, at);
}

// At the top an alternative may be anchored; where it is not, anything may stand before and behind it.
static int32_t read_alternatives(struct parser *p, int32_t from)
{
    int32_t to = nib_rules_state(p->rules);
    for (bool more = true; more && !p->status && !p->rules->failed;) {
        int32_t start = nib_rules_state(p->rules);
        nib_rules_skip(p->rules, from, start);
        bool anchored = p->depth || (p->at < p->end && *p->at == '^');
        p->at += !p->depth && anchored;
        if (!anchored)
            any_characters(p, start);
        int32_t last = read_sequence(p, start), end = nib_rules_state(p->rules);
        nib_rules_skip(p->rules, last, end);
        anchored = p->depth || (p->at < p->end && *p->at == '$');
        p->at += !p->depth && anchored;
        if (!anchored)
            any_characters(p, end);
        nib_rules_skip(p->rules, end, to);
        more = p->at < p->end && *p->at == '|';
        p->at += more;
    }
    return to;
}

nib_status nib_json_pattern(struct nib_rules *rules, const char *pattern, size_t size, int32_t from, int32_t *to,
                            const char *where, struct nib_error *err)
{
    struct parser p = {.rules = rules,
                       .pattern = (const unsigned char *)pattern,
                       .at = (const unsigned char *)pattern,
                       .end = (const unsigned char *)pattern + size,
                       .where = where,
                       .err = err};
    if (strlen(pattern) != size)
        unsupported(&p, "a NUL");
    *to = read_alternatives(&p, from);
    if (!p.status && p.at < p.end)
        unsupported(&p, *p.at == ')' ? "a ) without (" : "a $ inside");
    return p.status;
}
