// JSON's own shapes as rules of a byte automaton.
#include "text/json_rules.h"

#include <stdlib.h>
#include <string.h>

#include "text/json_schema.h"

#define MAX_SPACES 40 // behind a line break

// ---- pieces ----

static int32_t final_state(struct nib_rules *rules)
{
    int32_t state = nib_rules_state(rules);
    if (!rules->failed)
        rules->states[state].final = true;
    return state;
}

static int32_t byte(struct nib_rules *rules, int32_t from, char value)
{
    return nib_rules_literal(rules, from, &value, 1);
}

// One character of a string, as a plain byte, UTF-8 or an escape (not of a surrogate, so one escape is one character).
static void put_character(struct nib_rules *rules, int32_t from, int32_t to)
{
    nib_rules_bytes(rules, from, 0x20, 0x21, to);
    nib_rules_bytes(rules, from, 0x23, 0x5b, to);
    nib_rules_bytes(rules, from, 0x5d, 0x7f, to);
    nib_json_characters(rules, from, 0x80, 0x10ffff, to);
    int32_t escape = byte(rules, from, '\\');
    for (const char *letter = "\"\\/bfnrt"; *letter; letter++)
        nib_rules_bytes(rules, escape, (unsigned char)*letter, (unsigned char)*letter, to);
    int32_t digits[4] = {byte(rules, escape, 'u')};
    for (int i = 1; i < 4; i++)
        digits[i] = nib_rules_state(rules);
    int32_t surrogate_free = nib_rules_state(rules);
    static const unsigned char ranges[][2] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
    for (int r = 0; r < 3; r++) {
        for (int i = 1; i < 4; i++)
            nib_rules_bytes(rules, digits[i], ranges[r][0], ranges[r][1], i < 3 ? digits[i + 1] : to);
        for (int x = ranges[r][0]; x <= ranges[r][1]; x++)
            nib_rules_bytes(rules, digits[0], x, x, (x | 0x20) == 'd' ? surrogate_free : digits[1]);
    }
    nib_rules_bytes(rules, surrogate_free, '0', '7', digits[2]);
}

static void mark_body(struct nib_rules *rules, int32_t state, int32_t need, int32_t room, int32_t close)
{
    if (rules->failed)
        return;
    rules->states[state].need = need;
    rules->states[state].room = room;
    rules->states[state].close = close;
    if (need == 0)
        nib_rules_bytes(rules, state, '"', '"', close);
}

// A string of least to most characters; most -1: any number.
int32_t nib_json_string(struct nib_rules *rules, int32_t least, int32_t most)
{
    int32_t start = nib_rules_state(rules), body = byte(rules, start, '"'), close = final_state(rules);
    for (int32_t count = 0;; count++) {
        int32_t need = least > count ? least - count : 0;
        mark_body(rules, body, need, most < 0 ? NIB_UNLIMITED : most - count, close);
        if (most < 0 && need == 0)
            put_character(rules, body, body);
        if ((most < 0 && need == 0) || count == most || rules->failed)
            return start;
        int32_t next = nib_rules_state(rules);
        put_character(rules, body, next);
        body = next;
    }
}

// -?(0|[1-9][0-9]*), with a fraction and an exponent unless integer; digits are bounded, so that numbers end.
static int32_t plain_number_rule(struct nib_rules *rules, bool integer)
{
    int32_t start = nib_rules_state(rules), sign = byte(rules, start, '-'), end = final_state(rules);
    nib_rules_skip(rules, start, sign);
    int32_t whole = nib_rules_state(rules), digit = nib_rules_state(rules);
    nib_rules_bytes(rules, sign, '0', '0', whole);
    nib_rules_bytes(rules, sign, '1', '9', digit);
    nib_rules_skip(rules, digit, whole);
    for (int i = 1; i < 18; i++) {
        int32_t next = nib_rules_state(rules);
        nib_rules_bytes(rules, digit, '0', '9', next);
        nib_rules_skip(rules, next, whole);
        digit = next;
    }
    nib_rules_skip(rules, whole, end);
    if (integer)
        return start;
    int32_t point = byte(rules, whole, '.'), exponent = nib_rules_state(rules);
    for (int i = 0; i < 17; i++) {
        int32_t next = nib_rules_state(rules);
        nib_rules_bytes(rules, point, '0', '9', next);
        nib_rules_skip(rules, next, end);
        nib_rules_skip(rules, next, exponent);
        point = next;
    }
    nib_rules_skip(rules, whole, exponent);
    int32_t power = nib_rules_state(rules), after_sign = nib_rules_state(rules), one = nib_rules_state(rules);
    nib_rules_bytes(rules, exponent, 'e', 'e', power);
    nib_rules_bytes(rules, exponent, 'E', 'E', power);
    nib_rules_bytes(rules, power, '+', '+', after_sign);
    nib_rules_bytes(rules, power, '-', '-', after_sign);
    nib_rules_skip(rules, power, after_sign);
    nib_rules_bytes(rules, after_sign, '0', '9', one);
    nib_rules_skip(rules, one, end);
    nib_rules_bytes(rules, one, '0', '9', end);
    return start;
}

// Nothing, a space, or a line break with an indent.
static int32_t white_rule(struct nib_rules *rules)
{
    int32_t start = final_state(rules), end = final_state(rules);
    nib_rules_bytes(rules, start, ' ', ' ', end);
    int32_t line = byte(rules, start, '\n');
    for (int i = 0; i < MAX_SPACES && !rules->failed; i++) {
        rules->states[line].final = true;
        int32_t next = nib_rules_state(rules);
        nib_rules_bytes(rules, line, ' ', ' ', next);
        nib_rules_bytes(rules, line, '\t', '\t', next);
        line = next;
    }
    nib_rules_skip(rules, line, end);
    return start;
}

static int32_t white(struct nib_json_rules *c, int32_t from)
{
    int32_t to = nib_rules_state(c->rules);
    nib_rules_call(c->rules, from, nib_json_builtin(c, NIB_JSON_WHITE), to);
    return to;
}

static int32_t call(struct nib_json_rules *c, int32_t from, int32_t rule)
{
    int32_t to = nib_rules_state(c->rules);
    nib_rules_call(c->rules, from, rule, to);
    return to;
}

// ---- arrays and objects ----

static int32_t item_rule(const struct nib_json_items *items, int32_t index)
{
    return index < items->n_first ? items->first[index] : items->rest;
}

int32_t nib_json_array(struct nib_json_rules *c, const struct nib_json_items *items)
{
    struct nib_rules *rules = c->rules;
    int32_t start = nib_rules_state(rules), end = final_state(rules);
    int32_t close = nib_rules_state(rules); // what is left is white space and the bracket
    nib_rules_bytes(rules, white(c, close), ']', ']', end);
    int32_t open = white(c, byte(rules, start, '['));
    if (items->least == 0)
        nib_rules_bytes(rules, open, ']', ']', end);
    if (items->most == 0)
        return start;
    int32_t last = call(c, open, item_rule(items, 0));
    for (int32_t count = 1; !rules->failed; count++) {
        if (count >= items->least)
            nib_rules_skip(rules, last, close);
        if (count == items->most)
            break;
        int32_t next = call(c, white(c, byte(rules, last, ',')), item_rule(items, count));
        if (items->most < 0 && count >= items->least && count >= items->n_first) {
            nib_rules_skip(rules, next, last);
            break;
        }
        last = next;
    }
    return start;
}

static int bits_of(int32_t set)
{
    int bits = 0;
    for (; set; set &= set - 1)
        bits++;
    return bits;
}

// A state for each set of values that have stood there.
int32_t nib_json_unique_array(struct nib_json_rules *c, const char *const *values, int32_t count, int32_t least,
                              int32_t most)
{
    struct nib_rules *rules = c->rules;
    int32_t start = nib_rules_state(rules), end = final_state(rules), sets = 1 << count;
    int32_t *states = calloc((size_t)sets, sizeof *states);
    if (!states) {
        rules->failed = true;
        return start;
    }
    for (int32_t set = 0; set < sets; set++)
        states[set] = set ? nib_rules_state(rules) : white(c, byte(rules, start, '['));
    for (int32_t set = 0; set < sets && !rules->failed; set++) {
        if (bits_of(set) >= least)
            nib_rules_bytes(rules, set ? white(c, states[set]) : states[set], ']', ']', end);
        if (bits_of(set) >= most)
            continue;
        int32_t from = set ? white(c, byte(rules, states[set], ',')) : states[set];
        for (int32_t i = 0; i < count; i++)
            if (!(set & 1 << i))
                nib_rules_skip(rules, nib_rules_literal(rules, from, values[i], strlen(values[i])),
                               states[set | 1 << i]);
    }
    free(states);
    return start;
}

// The character beyond ASCII at the start of valid UTF-8.
static uint32_t character_at(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    int more = p[0] >= 0xf0 ? 3 : p[0] >= 0xe0 ? 2 : 1;
    uint32_t character = p[0] & (0x3fu >> more);
    for (int i = 1; i <= more; i++)
        character = character << 6 | (p[i] & 0x3f);
    return character;
}

static int compare_characters(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// Any character beyond ASCII but those that are taken. Sorts them.
static void put_other_characters(struct nib_rules *rules, int32_t from, uint32_t *taken /* [count] */,
                                 size_t count, int32_t to)
{
    uint32_t next = 0x80;
    qsort(taken, count, sizeof *taken, compare_characters);
    for (size_t i = 0; i < count; i++) {
        if (taken[i] > next)
            nib_json_characters(rules, from, next, taken[i] - 1, to);
        next = taken[i] + 1;
    }
    nib_json_characters(rules, from, next, 0x10ffff, to);
}

// The names that an object's further keys must not have, as a tree of their bytes.
static void put_other_key(struct nib_json_rules *c, const char *const *names /* [count] */, size_t count,
                          int32_t from, int32_t to)
{
    struct nib_rules *rules = c->rules;
    int32_t any = nib_rules_state(rules); // behind the quote's first difference from every name
    mark_body(rules, any, 0, NIB_UNLIMITED, to);
    put_character(rules, any, any);
    // Walks the tree level by level: `at[i]` is where name i stands, as long as it goes on.
    int32_t *at = malloc((count + 1) * sizeof *at);
    uint32_t *characters = malloc((count + 1) * sizeof *characters); // those beyond ASCII with which names go on
    bool *used = calloc(count + 1, sizeof *used); // names whose state at this level has been given its edges
    rules->failed |= !at || !characters || !used;
    int32_t wide_any = nib_rules_state(rules); // in front of any character beyond ASCII
    nib_json_characters(rules, wide_any, 0x80, 0x10ffff, any);
    int32_t root = byte(rules, from, '"');
    for (size_t i = 0; i < count && at; i++)
        at[i] = root;
    for (size_t level = 0; !rules->failed; level++) {
        bool more = false;
        memset(used, 0, count * sizeof *used);
        for (size_t i = 0; i < count && !rules->failed; i++) {
            if (at[i] < 0 || used[i])
                continue;
            bool taken[256] = {false}, ends = false, inside = false; // a character
            int32_t state = at[i], next[256];
            size_t wide = 0;
            for (size_t j = i; j < count; j++) {
                if (at[j] != state || used[j])
                    continue;
                used[j] = true;
                unsigned char b = (unsigned char)names[j][level];
                ends |= b == 0;
                inside |= (b & 0xc0) == 0x80;
                if (b >= 0xc0)
                    characters[wide++] = character_at(names[j] + level);
                if (b && !taken[b]) {
                    taken[b] = true;
                    next[b] = byte(rules, state, (char)b);
                }
                at[j] = b ? next[b] : -1;
                more |= b != 0;
            }
            if (!ends && !inside && level > 0)
                nib_rules_bytes(rules, state, '"', '"', to);
            if (wide > 0)
                put_other_characters(rules, state, characters, wide, any);
            else if (!inside)
                nib_rules_skip(rules, state, wide_any);
            for (int b = 0x20; b < 0x80 && !inside; b++) // differing in a plain character; no escape is needed
                if (b != '"' && b != '\\' && !taken[b])
                    nib_rules_bytes(rules, state, b, b, any);
        }
        if (!more)
            break;
    }
    free(used);
    free(characters);
    free(at);
    if (count == 0)
        nib_rules_skip(rules, root, any);
}

// Properties in order; `first` and `later` are the places where no property and where one stands before.
int32_t nib_json_object(struct nib_json_rules *c, const struct nib_json_object *object, const char *const *names)
{
    struct nib_rules *rules = c->rules;
    int32_t start = nib_rules_state(rules), end = final_state(rules);
    int32_t first = white(c, byte(rules, start, '{')), later = nib_rules_state(rules);
    for (size_t i = 0; i < object->count && !rules->failed; i++) {
        const struct nib_json_property *property = &object->properties[i];
        int32_t next_first = nib_rules_state(rules), next_later = nib_rules_state(rules);
        int32_t key = nib_rules_state(rules);
        nib_rules_skip(rules, first, key);
        nib_rules_skip(rules, white(c, byte(rules, later, ',')), key);
        int32_t value = nib_rules_literal(rules, key, property->key, strlen(property->key));
        nib_rules_call(rules, white(c, byte(rules, value, ':')), property->rule, next_later);
        if (!property->required) {
            nib_rules_skip(rules, first, next_first);
            nib_rules_skip(rules, later, next_later);
        }
        first = next_first;
        later = next_later;
    }
    if (object->others >= 0) {
        int32_t key = nib_rules_state(rules), colon = nib_rules_state(rules);
        nib_rules_skip(rules, first, key);
        nib_rules_skip(rules, white(c, byte(rules, later, ',')), key);
        if (object->other_key >= 0)
            nib_rules_call(rules, key, object->other_key, colon);
        else
            put_other_key(c, names, object->count, key, colon);
        nib_rules_call(rules, white(c, byte(rules, colon, ':')), object->others, later);
    }
    if (object->required == 0)
        nib_rules_bytes(rules, first, '}', '}', end);
    nib_rules_bytes(rules, white(c, later), '}', '}', end);
    return start;
}

static int32_t any_rule(struct nib_json_rules *c, int32_t rule)
{
    struct nib_rules *rules = c->rules;
    int32_t end = final_state(rules);
    struct nib_json_object free_object = {.others = rule, .other_key = -1};
    struct nib_json_items free_items = {.rest = rule, .most = -1};
    nib_rules_call(rules, rule, nib_json_builtin(c, NIB_JSON_STRING), end);
    nib_rules_call(rules, rule, nib_json_builtin(c, NIB_JSON_NUMBER), end);
    nib_rules_call(rules, rule, nib_json_object(c, &free_object, NULL), end);
    nib_rules_call(rules, rule, nib_json_array(c, &free_items), end);
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++)
        nib_rules_skip(rules, nib_rules_literal(rules, rule, words[i], strlen(words[i])), end);
    return rule;
}

int32_t nib_json_builtin(struct nib_json_rules *c, enum nib_json_kind which)
{
    int32_t *rule = &c->builtins[which];
    if (*rule >= 0)
        return *rule;
    switch (which) {
    case NIB_JSON_WHITE:
        return *rule = white_rule(c->rules);
    case NIB_JSON_STRING:
        return *rule = nib_json_string(c->rules, 0, -1);
    case NIB_JSON_NUMBER:
    case NIB_JSON_INTEGER:
        return *rule = plain_number_rule(c->rules, which == NIB_JSON_INTEGER);
    default:
        *rule = nib_rules_state(c->rules); // known before it is made: it contains itself
        return any_rule(c, *rule);
    }
}
