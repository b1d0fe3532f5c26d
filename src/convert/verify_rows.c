// One row of the source against what stands for it.
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "convert/verify.h"
#include "convert/verify_numbers.h"

enum { BLOCK = 32, BLOCK_BYTES = 16 };

// ---- Codes of the source ----

static unsigned code_at(const uint8_t *codes, int64_t i)
{
    return i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15u;
}

static const uint8_t *source_row(const struct nib_check *check, int64_t r)
{
    return check->source.data + r * check->source.row_stride;
}

static const uint8_t *source_scales(const struct nib_check *check, int64_t r)
{
    return check->source.scales + r * check->source.scale_stride;
}

// ---- Exact forms ----

static const char *codes_row(const struct nib_check *check, int64_t r)
{
    size_t bytes = (size_t)(check->source.cols / 2), blocks = bytes / BLOCK_BYTES;
    const uint8_t *scales = source_scales(check, r);
    if (memcmp(source_row(check, r), check->weight_rows + r * check->weight_stride, bytes) != 0)
        return "codes differ";
    if (memcmp(scales, check->scale_rows + r * check->scale_stride, blocks) != 0)
        return "scales differ";
    return memchr(scales, 255, blocks) ? "a scale is 255 (NaN)" : NULL;
}

// For a power of two between the source's scale and the row's: the E4M3 bytes that are equal, as (sign, mantissa, exponent),
// to the two codes of a packed byte. A number has one such byte or none.
enum { MAX_SHIFT = 16, NO_SUCH_BYTES = 1 << 16 };

static uint32_t equal_bytes[2 * MAX_SHIFT + 1][256];
static pthread_once_t equal_once = PTHREAD_ONCE_INIT;

// The byte whose number is that of the code times 2^shift; NO_SUCH_BYTES when there is none.
static uint32_t equal_byte(unsigned code, int shift)
{
    int32_t wanted = nib_key_e2m1(code);
    if (wanted != NIB_KEY_ZERO)
        wanted += shift * NIB_KEY_BINADE;
    for (unsigned byte = 0; byte < 256; byte++)
        if (nib_key_e4m3(byte) == wanted)
            return byte;
    return NO_SUCH_BYTES;
}

static void find_equal_bytes(void)
{
    for (int shift = -MAX_SHIFT; shift <= MAX_SHIFT; shift++) {
        uint32_t single[16];
        for (unsigned code = 0; code < 16; code++)
            single[code] = equal_byte(code, shift);
        for (unsigned packed = 0; packed < 256; packed++) {
            uint32_t even = single[packed & 15], odd = single[packed >> 4];
            bool none = even == NO_SUCH_BYTES || odd == NO_SUCH_BYTES;
            equal_bytes[shift + MAX_SHIFT][packed] = none ? NO_SUCH_BYTES : even | odd << 8;
        }
    }
}

// k of a scale that is 2^k, a normal float; false for any other.
static bool power_of(const uint8_t *scale /* [4] F32 */, int *k)
{
    uint32_t bits;
    memcpy(&bits, scale, sizeof bits);
    *k = (int)(bits >> 23) - 127;
    return (bits & 0x807fffffu) == 0 && bits >> 23 >= 1 && bits >> 23 <= 254;
}

static bool fp8_block(const uint8_t *codes /* [16] */, const uint8_t *bytes /* [32] */, int shift)
{
    // Beyond the tables only zeros have an equal.
    const uint32_t *wanted = equal_bytes[shift < -MAX_SHIFT  ? 0
                                         : shift > MAX_SHIFT ? 2 * MAX_SHIFT
                                                             : shift + MAX_SHIFT];
    uint32_t different = 0;
    for (int i = 0; i < BLOCK_BYTES; i++) {
        uint16_t pair;
        memcpy(&pair, bytes + 2 * i, sizeof pair);
        different |= wanted[codes[i]] ^ pair;
    }
    return different == 0;
}

// The row's largest exponent has to be 7 (field 14), where there is anything but zeros.
static bool has_top_field(const uint8_t *bytes, int64_t cols, bool *any)
{
    uint8_t top = 0, seen = 0;
    for (int64_t i = 0; i < cols; i++) {
        top |= (bytes[i] & 0x78) == 14 << 3;
        seen |= bytes[i];
    }
    *any = seen != 0;
    return top != 0;
}

static const char *fp8_row(const struct nib_check *check, int64_t r)
{
    const uint8_t *codes = source_row(check, r), *scales = source_scales(check, r);
    const uint8_t *bytes = check->weight_rows + r * check->weight_stride;
    int64_t cols = check->source.cols;
    int k;
    bool any;
    if (!power_of(check->scale_rows + r * check->scale_stride, &k))
        return "the scale is not a positive power of two";
    pthread_once(&equal_once, find_equal_bytes);
    for (int64_t b = 0; b < cols / BLOCK; b++) {
        if (scales[b] == 255)
            return "a scale of the source is 255 (NaN)";
        if (!fp8_block(codes + b * BLOCK_BYTES, bytes + b * BLOCK, (int)scales[b] - 127 - k))
            return "an element differs, or is a byte that an exact conversion never writes";
    }
    bool top = has_top_field(bytes, cols, &any);
    if (any && !top)
        return "the largest exponent is not 7";
    return !any && k != 0 ? "the scale of a row of zeros is not 1" : NULL;
}

// ---- Lossy forms ----

// bf16 arithmetic: every result is rounded to bf16.
static double bf16(double value)
{
    return nib_number_bf16(nib_round_bf16(value));
}

static const char *int4_row(const struct nib_check *check, int64_t r)
{
    const uint8_t *codes = source_row(check, r), *words = check->weight_rows + r * check->weight_stride;
    const uint8_t *scales = check->scale_rows + r * check->scale_stride;
    for (int64_t b = 0; b < check->source.cols / BLOCK; b++) {
        double unit = nib_number_e8m0(source_scales(check, r)[b]), top = 0, q[16];
        if (source_scales(check, r)[b] == 255)
            return "a scale of the source is 255 (NaN)";
        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i++)
            top = fmax(top, fabs(bf16(nib_number_e2m1(code_at(codes, i)) * unit)));
        double step = bf16(fmax(top, bf16(1e-6)) / 7);
        uint16_t wanted = nib_round_bf16(step), got;
        memcpy(&got, scales + 2 * b, 2);
        if (got != wanted)
            return "a scale is not the one that follows from its group";
        for (unsigned code = 0; code < 16; code++)
            q[code] = fmin(7, fmax(-7, nearbyint(bf16(bf16(nib_number_e2m1(code) * unit) / step))));
        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i++)
            if ((int)code_at(words, i) - 8 != (int)q[code_at(codes, i)])
                return "a code is not the one that follows from its value";
    }
    return NULL;
}

// The scale exponent by each rule's definition, for the largest magnitude `top` > 0.
static int rule_exponent(double top, enum nib_mx_scale_rule rule)
{
    int binade = ilogb(top);
    if (rule == NIB_MX_SCALE_EVEN && ldexp(top, -binade) >= 1.75)
        binade++;
    if (rule != NIB_MX_SCALE_RCEIL)
        return binade - 2;
    int exponent = binade - 4;
    while (ldexp(6, exponent) < top)
        exponent++;
    return exponent;
}

// The code nearest to value / 2^exponent: of all eight magnitudes, of two equally near the even one.
static unsigned nearest_code(double value, int exponent)
{
    double magnitude = ldexp(fabs(value), -exponent), best = INFINITY;
    unsigned chosen = 0;
    for (unsigned code = 0; code < 8; code++) {
        double distance = fabs(nib_number_e2m1(code) - magnitude);
        if (distance < best || (distance == best && code % 2 == 0)) {
            best = distance;
            chosen = code;
        }
    }
    return chosen && value < 0 ? chosen | 8 : chosen;
}

static int clamp_exponent(int exponent)
{
    return exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
}

static double block_error(const double *values /* [32] */, int exponent)
{
    double sum = 0;
    for (int i = 0; i < BLOCK; i++) {
        double error = ldexp(nib_number_e2m1(nearest_code(values[i], exponent)), exponent) - values[i];
        sum += error * error;
    }
    return sum;
}

static int wanted_exponent(const double *values /* [32] */, double top, enum nib_mx_scale_rule rule)
{
    int exponent = rule_exponent(top, rule);
    if (rule != NIB_MX_SCALE_SEARCH)
        return clamp_exponent(exponent);
    int chosen = 0;
    double best = INFINITY;
    for (int candidate = exponent - 1; candidate <= exponent + 1; candidate++) {
        double error = block_error(values, clamp_exponent(candidate));
        if (error < best) {
            best = error;
            chosen = clamp_exponent(candidate);
        }
    }
    return chosen;
}

static const char *encode_row(const struct nib_check *check, int64_t r, enum nib_mx_scale_rule rule)
{
    const uint8_t *codes = check->weight_rows + r * check->weight_stride;
    const uint8_t *scales = check->scale_rows + r * check->scale_stride;
    for (int64_t b = 0; b < check->source.cols / BLOCK; b++) {
        double values[BLOCK], top = 0;
        nib_matrix_values(&check->source, r, b * BLOCK, BLOCK, values);
        for (int i = 0; i < BLOCK; i++) {
            values[i] = (double)(float)values[i]; // the values are those of fp32
            if (!isfinite(values[i]))
                return "an element of the source is not finite";
            top = fmax(top, fabs(values[i]));
        }
        int exponent = top > 0 ? wanted_exponent(values, top, rule) : -127;
        if ((int)scales[b] - 127 != exponent)
            return "a scale is not the one that the rule gives";
        for (int i = 0; i < BLOCK; i++)
            if (code_at(codes, b * BLOCK + i) != nearest_code(values[i], exponent))
                return "a code is not the nearest one";
    }
    return NULL;
}

static const char *bf16_row(const struct nib_check *check, int64_t r)
{
    const uint8_t *row = check->weight_rows + r * check->weight_stride;
    for (int64_t c = 0; c < check->source.cols; c++) {
        double value;
        uint16_t got;
        nib_matrix_values(&check->source, r, c, 1, &value);
        memcpy(&got, row + 2 * c, 2);
        if (got != nib_round_bf16(value))
            return "an element is not the nearest bf16";
    }
    return NULL;
}

// ---- All of them ----

static const char *bias_row(const struct nib_check *check, int64_t r)
{
    if (!check->bias_rows)
        return NULL;
    const uint8_t *source = check->source.bias + r * check->source.bias_stride;
    bool same = memcmp(source, check->bias_rows + r * check->bias_stride, (size_t)check->bias_bytes) == 0;
    return same ? NULL : "the bias differs";
}

static const char *check_row(const struct nib_verifier *verifier, const struct nib_check *check, int64_t r)
{
    switch (check->kind) {
    case NIB_CHECK_CODES:
        return codes_row(check, r);
    case NIB_CHECK_FP8:
        return fp8_row(check, r);
    case NIB_CHECK_INT4:
        return int4_row(check, r);
    case NIB_CHECK_ENCODE:
        return encode_row(check, r, verifier->rule);
    case NIB_CHECK_BF16:
        return bf16_row(check, r);
    case NIB_CHECK_BYTES:
        break;
    }
    return "nothing to compare with";
}

static int64_t first_difference(const uint8_t *one, const uint8_t *other, int64_t count)
{
    int64_t i = 0;
    while (i < count && one[i] == other[i])
        i++;
    return i;
}

// Spreads the rows that a sample takes over everything.
static bool is_sampled(const struct nib_check *check, int64_t r, double sample)
{
    uint64_t hash =
        ((uint64_t)(uintptr_t)check->weight->name[0] + (uint64_t)check->expert * 1000003u + (uint64_t)r) *
        0x9e3779b97f4a7c15u;
    return (double)(hash >> 11) * 0x1p-53 < sample;
}

int64_t nib_verify_rows(const struct nib_verifier *verifier, const struct nib_check *check, int64_t first,
                        int64_t count, uint64_t *elements, const char **why)
{
    double sample = verifier->options->sample;
    bool all = !(sample > 0 && sample < 1);
    if (check->kind == NIB_CHECK_BYTES) {
        if (!all && !is_sampled(check, first, sample))
            return -1;
        *elements += (uint64_t)count / nib_dtype_size(check->weight->dtype);
        *why = "the bytes differ";
        if (memcmp(check->source.data + first, check->weight_rows + first, (size_t)count) == 0)
            return -1;
        return first + first_difference(check->source.data + first, check->weight_rows + first, count);
    }
    for (int64_t r = first; r < first + count; r++) {
        if (!all && !is_sampled(check, r, sample))
            continue;
        *elements += (uint64_t)check->source.cols;
        *why = check_row(verifier, check, r);
        if (!*why)
            *why = bias_row(check, r);
        if (*why)
            return r;
    }
    return -1;
}
