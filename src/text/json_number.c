// Numbers between bounds, compared digit by digit as they are written.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/json_schema.h"

enum { INTEGER_DIGITS = 16, FRACTION_DIGITS = 15, DIGITS = INTEGER_DIGITS + FRACTION_DIGITS };

// A number that is not negative, as digits around a point.
struct decimal {
    char text[64];
    int whole, fraction; // digits before and behind the point
};

// Of a bound. Where that many digits do not write it, the next number that they do write takes its place, on the side
// that is left out or on the other.
static struct decimal decimal_of(double value, bool is_low, bool *excluded)
{
    struct decimal d = {.whole = 0};
    value += 0.0; // -0 has a sign of its own
    snprintf(d.text, sizeof d.text, "%.15g", value);
    if (strchr(d.text, 'e') || strtod(d.text, NULL) != value)
        snprintf(d.text, sizeof d.text, "%.*f", FRACTION_DIGITS, value);
    double written = strtod(d.text, NULL);
    if (written != value)
        *excluded = is_low == (written < value);
    const char *point = strchr(d.text, '.');
    d.whole = (int)(point ? (size_t)(point - d.text) : strlen(d.text));
    d.fraction = point ? (int)strlen(point + 1) : 0;
    return d;
}

// What is being written: a number of `whole` digits before its point, from low to high. A state is how many digits
// stand there, and whether they are still those of low, of high.
struct span {
    struct nib_rules *rules;
    struct decimal low, high;
    bool has_high, above_low, below_high, integer;
    int whole;
    int32_t end;                      // state behind the number
    int32_t states[DIGITS + 1][2][2]; // -2: not visited
};

// Digit `at` of a bound, counted as in a number of span->whole digits before the point.
static int digit(const struct span *span, const struct decimal *bound, int at)
{
    if (at < span->whole)
        return bound->text[at] - '0'; // asked only when it has as many
    at -= span->whole;
    return at < bound->fraction ? bound->text[bound->whole + 1 + at] - '0' : 0;
}

static bool zeros_from(const struct span *span, const struct decimal *bound, int at)
{
    for (; at < span->whole + bound->fraction; at++)
        if (digit(span, bound, at))
            return false;
    return true;
}

// Whether the number may end behind `at` digits.
static bool may_end(const struct span *span, int at, bool as_low, bool as_high)
{
    if (at < span->whole)
        return false;
    if (as_low && (!zeros_from(span, &span->low, at) || span->above_low))
        return false;
    return !as_high || !span->below_high || !zeros_from(span, &span->high, at);
}

static int32_t visit(struct span *span, int at, bool as_low, bool as_high);

// Edges for the digit number `at` from the state `from`; false when there is none.
static bool put_digits(struct span *span, int32_t from, int at, bool as_low, bool as_high)
{
    int least = as_low ? digit(span, &span->low, at) : 0, most = as_high ? digit(span, &span->high, at) : 9;
    bool any = false;
    if (at == 0 && span->whole > 1 && least == 0)
        least = 1;
    for (int d = least; d <= most; d++) {
        bool low = as_low && d == digit(span, &span->low, at), high = as_high && d == digit(span, &span->high, at);
        int32_t to = visit(span, at + 1, low, high);
        if (to >= 0)
            nib_rules_bytes(span->rules, from, '0' + d, '0' + d, to);
        any |= to >= 0;
    }
    return any;
}

// The state behind `at` digits, -1 when no number comes of it.
static int32_t visit(struct span *span, int at, bool as_low, bool as_high)
{
    int32_t *known = &span->states[at][as_low][as_high];
    if (*known != -2)
        return *known;
    struct nib_rules *rules = span->rules;
    int32_t state = nib_rules_state(rules);
    bool useful = may_end(span, at, as_low, as_high);
    if (useful)
        nib_rules_skip(rules, state, span->end);
    bool more = at < span->whole || (!span->integer && at < span->whole + FRACTION_DIGITS);
    if (more && at == span->whole) {
        int32_t point = nib_rules_state(rules);
        if (put_digits(span, point, at, as_low, as_high)) {
            nib_rules_bytes(rules, state, '.', '.', point);
            useful = true;
        }
    } else if (more) {
        useful |= put_digits(span, state, at, as_low, as_high);
    }
    return *known = useful ? state : -1;
}

// Numbers from low >= 0 to high (or any) between two states; false when there is none.
static bool put_positive(struct nib_rules *rules, int32_t from, int32_t to, double low, double high,
                         struct span span)
{
    bool any = false;
    span.low = decimal_of(low, true, &span.above_low);
    span.high = decimal_of(high, false, &span.below_high);
    int longest = span.has_high ? span.high.whole : INTEGER_DIGITS - 1;
    span.rules = rules;
    span.end = to;
    for (span.whole = span.low.whole; span.whole <= longest; span.whole++) {
        for (int i = 0; i <= DIGITS; i++)
            for (int j = 0; j < 4; j++)
                span.states[i][j / 2][j % 2] = -2;
        int32_t first = visit(&span, 0, span.whole == span.low.whole, span.has_high && span.whole == longest);
        if (first >= 0)
            nib_rules_skip(rules, from, first);
        any |= first >= 0;
    }
    return any;
}

static struct nib_number_range whole_bounds(struct nib_number_range range)
{
    if (!range.integer)
        return range;
    range.low = range.above_low ? floor(range.low) + 1 : ceil(range.low);
    range.high = range.below_high ? ceil(range.high) - 1 : floor(range.high);
    range.above_low = range.below_high = false;
    return range;
}

int32_t nib_json_number_range(struct nib_rules *rules, const struct nib_number_range *wanted)
{
    struct nib_number_range range = whole_bounds(*wanted);
    int32_t from = nib_rules_state(rules), to = nib_rules_state(rules), minus = nib_rules_state(rules);
    bool positive = false, negative = false;
    rules->states[to].final = true;
    if (range.has_low && range.has_high && range.low > range.high)
        return -1;
    if (!range.has_high || range.high >= 0) {
        bool from_low = range.has_low && range.low >= 0;
        positive = put_positive(rules, from, to, from_low ? range.low : 0, range.has_high ? range.high : 0,
                                (struct span){.has_high = range.has_high,
                                              .above_low = from_low && range.above_low,
                                              .below_high = range.below_high,
                                              .integer = range.integer});
    }
    if (!range.has_low || range.low < 0) {
        bool from_high = range.has_high && range.high < 0;
        negative = put_positive(rules, minus, to, from_high ? -range.high : 0, range.has_low ? -range.low : 0,
                                (struct span){.has_high = range.has_low,
                                              .above_low = from_high ? range.below_high : true,
                                              .below_high = range.above_low,
                                              .integer = range.integer});
        if (negative)
            nib_rules_bytes(rules, from, '-', '-', minus);
    }
    return positive || negative ? from : -1;
}
