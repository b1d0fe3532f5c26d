// Rotary positions, the paged cache and attention.
#include <math.h>
#include <stdio.h>

#include "device_pair.h"

// ---- attention ----

struct attention_shape {
    int64_t heads, kv_heads, dim, v_dim, window;
    bool sinks, latent, interleaved;
    int64_t first, dims; // that are rotated
};

struct attention_context {
    const struct attention_shape *shape;
    struct pair *q, *k, *v, *y;
    struct nib_cache keys[DEVICES], values[DEVICES];
    struct weights *sinks;
    const float *inv_freq;
    bool attends;
};

static void attention_body(int d, void *context)
{
    struct attention_context *c = context;
    const struct attention_shape *s = c->shape;
    const struct nib_ops *ops = devices[d].ops;
    struct nib_device *device = devices[d].device;
    struct nib_rope rope = {c->inv_freq, s->first, s->dims, 1.2f, s->interleaved};
    ops->rope(device, c->q->on[d], s->heads, s->dim, &rope);
    ops->rope(device, c->k->on[d], s->kv_heads, s->dim, &rope);
    ops->append(device, c->keys[d], c->k->on[d]);
    if (!s->latent)
        ops->append(device, c->values[d], c->v->on[d]);
    if (!c->attends)
        return;
    struct nib_attend attend = {s->heads,  s->kv_heads, s->dim, s->v_dim,
                                s->window, 0.11f,       1.5f,   s->sinks ? &c->sinks->on[d] : NULL};
    ops->attend(device, c->y->on[d], c->q->on[d], c->keys[d], s->latent ? c->keys[d] : c->values[d], &attend);
}

// Histories of first[s] tokens, then a step of count[s] more.
static void check_attention(const struct attention_shape *s, const float *inv_freq, int32_t n,
                            const int32_t *first, const int32_t *count)
{
    char what[160];
    struct test_step step = test_step_make(32, n, first, count);
    struct weights sinks = pair_random_weights(1, s->heads, NIB_BF16, 3, 2);
    struct pair q = pair_make(MAX_TOKENS, s->heads * s->dim, NULL),
                k = pair_make(MAX_TOKENS, s->kv_heads * s->dim, NULL),
                v = pair_make(MAX_TOKENS, s->kv_heads * s->v_dim, NULL),
                y = pair_make(MAX_TOKENS, s->heads * s->v_dim, NULL);
    struct attention_context c = {
        .shape = s, .q = &q, .k = &k, .v = &v, .y = &y, .sinks = &sinks, .inv_freq = inv_freq};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++)
        if (devices[d].ops->alloc_cache(devices[d].device, step.pages, 32, s->kv_heads * s->dim, 0, &c.keys[d],
                                        &err) ||
            devices[d].ops->alloc_cache(devices[d].device, step.pages, 32, s->kv_heads * s->v_dim, 0, &c.values[d],
                                        &err))
            pair_die("cache", err.message);
    // The histories are appended through the same tables, some tokens of one sequence at a time.
    for (int32_t sequence = 0; sequence < n; sequence++)
        for (int32_t done = 0; done < first[sequence];) {
            int32_t here = first[sequence] - done < 150 ? first[sequence] - done : 150, rows[2] = {0, here},
                    of[MAX_TOKENS] = {0}, at[MAX_TOKENS];
            for (int32_t i = 0; i < here; i++)
                at[i] = done + i;
            struct test_step part = step;
            part.step.n_tokens = here, part.step.n_sequences = 1, part.step.n_outputs = 0;
            part.step.positions = at, part.step.sequence_of = of, part.step.first_row = rows;
            part.step.page_tables = step.step.page_tables + sequence * step.step.table_width;
            pair_drop(&q), pair_drop(&k), pair_drop(&v);
            q = pair_random(MAX_TOKENS, s->heads * s->dim, 50),
            k = pair_random(MAX_TOKENS, s->kv_heads * s->dim, 60 + (uint64_t)done),
            v = pair_random(MAX_TOKENS, s->kv_heads * s->v_dim, 70 + (uint64_t)done);
            pair_compare("rope, append: q", &part, attention_body, &c, &q, here, BOUND_F32);
            done += here;
        }
    pair_drop(&q), pair_drop(&k), pair_drop(&v);
    q = pair_random(MAX_TOKENS, s->heads * s->dim, 51), k = pair_random(MAX_TOKENS, s->kv_heads * s->dim, 52),
    v = pair_random(MAX_TOKENS, s->kv_heads * s->v_dim, 53);
    c.attends = true;
    snprintf(what, sizeof what, "attend %lld/%lld x %lld/%lld window %lld%s, %d sequences, %d tokens after %d",
             (long long)s->heads, (long long)s->kv_heads, (long long)s->dim, (long long)s->v_dim,
             (long long)s->window, s->sinks ? ", sinks" : "", n, count[0], first[0]);
    pair_compare(what, &step, attention_body, &c, &y, step.step.n_tokens, BOUND_HALF);
    for (int d = REF; d < DEVICES; d++) {
        devices[d].ops->free_cache(devices[d].device, &c.keys[d]);
        devices[d].ops->free_cache(devices[d].device, &c.values[d]);
    }
    pair_drop(&q), pair_drop(&k), pair_drop(&v), pair_drop(&y);
    pair_unbind(&sinks);
    test_step_free(&step);
}

void check_attentions(void)
{
    static const struct attention_shape shapes[] = {
        {64, 8, 64, 64, 0, true, false, false, 0, 64},    {64, 8, 64, 64, 128, true, false, false, 0, 64},
        {8, 2, 32, 32, 7, false, false, false, 0, 32},    {4, 4, 64, 64, 0, false, false, true, 0, 32},
        {8, 1, 192, 128, 0, false, false, false, 0, 64},  {6, 2, 48, 40, 0, true, false, false, 16, 16},
        {16, 1, 576, 512, 0, false, true, true, 512, 64}, {4, 2, 128, 128, 33, false, false, false, 0, 128},
    };
    static const int32_t first[][4] = {{0, 0, 0, 0}, {1, 200, 31, 700}, {130, 0, 64, 5}},
                         count[][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}, {70, 33, 1, 9}};
    int n = (int)(sizeof shapes / sizeof *shapes);
    static float tables[4][64]; // a device keeps a copy of each by its address
    for (int i = 0; i < (quick ? 2 : n); i++) {
        int64_t dims = shapes[i].dims;
        float *table = tables[dims == 16 ? 0 : dims == 32 ? 1 : dims == 64 ? 2 : 3];
        for (int64_t j = 0; j < dims / 2; j++)
            table[j] = powf(1e4f, -2.0f * (float)j / (float)dims);
        for (int j = 0; j < 3; j++)
            check_attention(&shapes[i], table, 4, first[j], count[j]);
    }
}
