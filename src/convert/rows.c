#include "convert/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { CODE_BYTES = NIB_MX_BLOCK / 2 };

// ---- Which row of which matrix ----

struct place {
    const struct nib_matrix *matrix;
    int64_t row, expert;
    enum nib_part part;
};

static struct place place_of(const struct nib_unit *unit, int64_t r)
{
    if (unit->stack == NIB_STACK_NONE)
        return (struct place){unit->matrix, r, unit->expert, unit->part};
    int64_t expert = r / unit->part_rows, row = r % unit->part_rows, half = unit->part_rows / 2;
    const struct nib_matrix *parts = unit->matrix + expert * NIB_PART_COUNT;
    if (unit->stack == NIB_STACK_DOWN)
        return (struct place){parts, row, expert, NIB_PART_DOWN};
    bool up = unit->stack == NIB_STACK_INTERLEAVED ? row % 2 != 0 : row >= half;
    int64_t within = unit->stack == NIB_STACK_INTERLEAVED ? row / 2 : row % half;
    return (struct place){parts + (up ? NIB_PART_UP : NIB_PART_GATE), within, expert,
                          up ? NIB_PART_UP : NIB_PART_GATE};
}

static const uint8_t *codes_at(const struct place *place)
{
    return place->matrix->data + place->row * place->matrix->row_stride;
}

static const uint8_t *scales_at(const struct place *place)
{
    return place->matrix->scales + place->row * place->matrix->scale_stride;
}

// ---- Errors of lossy forms ----

static void add_error(struct nib_row_stats *stats, double squared_error, double squared_norm,
                      const struct place *place, int64_t group)
{
    struct nib_convert_error *error = &stats->parts[place->part];
    error->squared_error += squared_error;
    error->squared_norm += squared_norm;
    double relative = squared_norm > 0 ? sqrt(squared_error / squared_norm) : 0;
    if (relative > error->worst) {
        error->worst = relative;
        error->worst_expert = place->expert;
        error->worst_row = place->row;
        error->worst_group = group;
    }
}

// ---- Recipes, a row each ----

static nib_status fail_nan(const struct nib_plan *plan, const uint8_t *scales, struct nib_error *err)
{
    return nib_source_fail_row(plan->source, scales, NIB_ERR_FORMAT, "a scale is 255 (NaN)", err);
}

static nib_status mxfp4_row(const struct nib_plan *plan, const struct nib_unit *unit, const struct place *place,
                            uint8_t *codes, uint8_t *scales, struct nib_error *err)
{
    size_t blocks = (size_t)(unit->cols / NIB_MX_BLOCK);
    if (memchr(scales_at(place), 255, blocks))
        return fail_nan(plan, scales_at(place), err);
    memcpy(codes, codes_at(place), blocks * CODE_BYTES);
    memcpy(scales, scales_at(place), blocks);
    return NIB_OK;
}

static nib_status fp8_row(const struct nib_plan *plan, const struct nib_unit *unit, const struct place *place,
                          uint8_t *bytes, uint8_t *scale_bytes, struct nib_row_stats *stats, struct nib_error *err)
{
    float scale;
    int span;
    enum nib_fp8_verdict verdict =
        plan->fp8_row(codes_at(place), scales_at(place), unit->cols, bytes, &scale, &span);
    if (verdict == NIB_FP8_NAN)
        return fail_nan(plan, scales_at(place), err);
    if (verdict == NIB_FP8_WIDE)
        return nib_source_fail_row(plan->source, codes_at(place), NIB_ERR_UNSUPPORTED,
                                   "no exact FP8 form: its elements spread over more than 13 binades", err);
    if (verdict == NIB_FP8_SMALL)
        return nib_source_fail_row(plan->source, codes_at(place), NIB_ERR_UNSUPPORTED,
                                   "no exact FP8 form: its scale would be below 2^-126", err);
    memcpy(scale_bytes, &scale, sizeof scale);
    stats->span_rows[span]++;
    return NIB_OK;
}

static nib_status int4_row(const struct nib_plan *plan, const struct nib_unit *unit, const struct place *place,
                           uint8_t *words, uint8_t *scale_bytes, struct nib_row_stats *stats,
                           struct nib_error *err)
{
    for (int64_t b = 0; b < unit->cols / NIB_MX_BLOCK; b++) {
        const uint8_t *codes = codes_at(place) + b * CODE_BYTES;
        uint8_t scale = scales_at(place)[b];
        if (scale == 255)
            return fail_nan(plan, scales_at(place), err);
        struct nib_int4_block block = nib_int4_codebook(scale, nib_largest_code(codes));
        if (!block.finite)
            return nib_source_fail_row(plan->source, codes_at(place), NIB_ERR_UNSUPPORTED,
                                       "an element is beyond the range of bf16", err);
        double squares[8], norms[8], step = nib_bf16_to_f32(block.scale), unit_value = nib_e8m0_to_f32(scale);
        for (unsigned code = 0; code < 8; code++) {
            double value = nib_e2m1_to_f32((uint8_t)code) * unit_value, coded = (block.nibble[code] - 8) * step;
            squares[code] = (value - coded) * (value - coded);
            norms[code] = value * value;
        }
        double squared_error = 0, squared_norm = 0;
        for (int i = 0; i < CODE_BYTES; i++) {
            // Element j of a word is at bits 4j, so two neighbours are a byte, as they were.
            unsigned even = codes[i] & 15, odd = codes[i] >> 4;
            words[b * CODE_BYTES + i] = (uint8_t)(block.nibble[even] | block.nibble[odd] << 4);
            squared_error += squares[even & 7] + squares[odd & 7];
            squared_norm += norms[even & 7] + norms[odd & 7];
        }
        memcpy(scale_bytes + 2 * b, &block.scale, 2);
        add_error(stats, squared_error, squared_norm, place, b);
    }
    return NIB_OK;
}

static nib_status encode_row(const struct nib_plan *plan, const struct nib_unit *unit, const struct place *place,
                             uint8_t *codes, uint8_t *scales, struct nib_row_stats *stats, struct nib_error *err)
{
    for (int64_t b = 0; b < unit->cols / NIB_MX_BLOCK; b++) {
        double exact[NIB_MX_BLOCK];
        float values[NIB_MX_BLOCK], coded[NIB_MX_BLOCK];
        nib_matrix_values(place->matrix, place->row, b * NIB_MX_BLOCK, NIB_MX_BLOCK, exact);
        bool finite = true;
        for (int i = 0; i < NIB_MX_BLOCK; i++) {
            values[i] = (float)exact[i];
            finite &= isfinite(values[i]) != 0;
        }
        if (!finite) {
            char what[96];
            snprintf(what, sizeof what, "expert %lld's %s row %lld has an element that is not finite",
                     (long long)place->expert, nib_part_names[place->part], (long long)place->row);
            return nib_source_fail_row(plan->source, place->matrix->data, NIB_ERR_UNSUPPORTED, what, err);
        }
        uint8_t *block = codes + b * CODE_BYTES;
        scales[b] = nib_mxfp4_encode_block(values, plan->options.scale_rule, block);
        nib_mxfp4_decode_row(block, scales + b, NIB_MX_BLOCK, coded);
        double squared_error = 0, squared_norm = 0;
        for (int i = 0; i < NIB_MX_BLOCK; i++) {
            double difference = (double)coded[i] - (double)values[i];
            squared_error += difference * difference;
            squared_norm += (double)values[i] * (double)values[i];
        }
        add_error(stats, squared_error, squared_norm, place, b);
    }
    return NIB_OK;
}

// Rounds once: where the nearest float is the very middle of two bf16 and the value is not, the value's side counts.
static uint16_t bf16_of(double value)
{
    float nearest = (float)value;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if ((bits & 0xffffu) == 0x8000u && (double)nearest != value)
        bits += fabs(value) > fabs((double)nearest) ? 1u : -1u;
    memcpy(&nearest, &bits, sizeof bits);
    return nib_bf16_from_f32(nearest);
}

static void bf16_row(const struct nib_unit *unit, const struct place *place, uint8_t *bytes)
{
    for (int64_t c = 0; c < unit->cols; c += NIB_MX_BLOCK) {
        double values[NIB_MX_BLOCK];
        int64_t count = unit->cols - c < NIB_MX_BLOCK ? unit->cols - c : NIB_MX_BLOCK;
        nib_matrix_values(place->matrix, place->row, c, count, values);
        for (int64_t i = 0; i < count; i++) {
            uint16_t half = bf16_of(values[i]);
            memcpy(bytes + 2 * (c + i), &half, 2);
        }
    }
}

// ---- A run of rows ----

// Where output o of the run's row r goes.
static uint8_t *row_at(const struct nib_unit *unit, uint8_t *const *out, int o, int64_t r)
{
    return out[o] + (uint64_t)r * unit->outputs[o].row_bytes;
}

static nib_status make_row(const struct nib_plan *plan, const struct nib_unit *unit, const struct place *place,
                           uint8_t *weight, uint8_t *scale, struct nib_row_stats *stats, struct nib_error *err)
{
    switch (unit->recipe) {
    case NIB_RECIPE_MXFP4:
        return mxfp4_row(plan, unit, place, weight, scale, err);
    case NIB_RECIPE_FP8:
        return fp8_row(plan, unit, place, weight, scale, stats, err);
    case NIB_RECIPE_INT4:
        return int4_row(plan, unit, place, weight, scale, stats, err);
    case NIB_RECIPE_ENCODE:
        return encode_row(plan, unit, place, weight, scale, stats, err);
    case NIB_RECIPE_BF16:
        bf16_row(unit, place, weight);
        return NIB_OK;
    case NIB_RECIPE_COPY:
        break;
    }
    return nib_fail(err, NIB_ERR_ARGUMENT, "a plan's unit without rows");
}

// A bias is the last output of a unit whose matrix has one.
static void copy_bias(const struct nib_unit *unit, const struct place *place, uint8_t *to)
{
    size_t bytes = (size_t)unit->outputs[unit->n_outputs - 1].row_bytes;
    memcpy(to, place->matrix->bias + place->row * place->matrix->bias_stride, bytes);
}

nib_status nib_make_rows(const struct nib_plan *plan, const struct nib_unit *unit, int64_t first, int64_t count,
                         uint8_t *const *out /* [n_outputs] */, struct nib_row_stats *stats, struct nib_error *err)
{
    if (unit->recipe == NIB_RECIPE_COPY) {
        memcpy(out[0], unit->bytes + first, (size_t)count);
        return NIB_OK;
    }
    if (unit->recipe == NIB_RECIPE_INT4 && out[2]) {
        int32_t shape[2] = {(int32_t)unit->rows, (int32_t)unit->cols};
        memcpy(out[2], shape, sizeof shape);
    }
    nib_status status = NIB_OK;
    for (int64_t r = 0; status == NIB_OK && r < count; r++) {
        struct place place = place_of(unit, first + r);
        // A unit of one tensor makes no use of a second place.
        uint8_t *scale = row_at(unit, out, unit->n_outputs > 1, r);
        status = make_row(plan, unit, &place, row_at(unit, out, 0, r), scale, stats, err);
        if (status == NIB_OK && place.matrix->bias)
            copy_bias(unit, &place, row_at(unit, out, unit->n_outputs - 1, r));
    }
    return status;
}
