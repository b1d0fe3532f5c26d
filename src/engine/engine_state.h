// What an engine is made of; shared by the files of this room.
#ifndef NIB_ENGINE_ENGINE_STATE_H
#define NIB_ENGINE_ENGINE_STATE_H

#include "engine/kv_pool.h"
#include "engine/prefix_cache.h"
#include "model/model.h"
#include "nibble/engine.h"

// The arrays that describe one step to the device, sized once for the largest.
struct nib_step_arrays {
    int32_t *tokens, *positions, *sequence_of; /* [max_step_tokens] */
    int32_t *first_row;                        /* [max_sequences + 1] */
    int32_t *page_tables;                      /* [n_groups, max_sequences, table_width] */
    int32_t *output_rows;                      /* [max_outputs] */
    float *logits;                             /* [max_outputs, vocab] host rows of the last step */
};

struct nib_engine {
    struct nib_memory_plan plan;
    struct nib_checkpoint *checkpoint;
    struct nib_model *model;
    const struct nib_ops *ops;
    int ordinal; // of the device among its kind
    struct nib_device *device;
    struct nib_kv_pool pool;
    int threads;
    bool dense_int8;
    int32_t max_outputs;
    int32_t n_sequences; // alive
    struct nib_step_arrays arrays;
    int32_t n_output_rows;     // of the last step
    bool logits_read;          // they lie in arrays.logits
    uint64_t step_cache_bytes; // rows that the last step's tokens saw
    uint64_t dense_bytes;      // weights that every step reads
};

struct nib_sequence {
    struct nib_engine *engine;
    struct nib_page_table table;
    struct nib_prefix_trail trail; // only kept with a prefix cache
};

// nib_engine_step that also draws a token from each row of logits, in the rows' order, on devices that can: ops->sample.
nib_status nib_engine_step_and_draw(struct nib_engine *engine, const struct nib_feed *feeds /* [n] */, int n,
                                    const struct nib_draw *draws /* [output rows] or NULL */,
                                    struct nib_drawn *drawn /* [output rows] */, struct nib_error *err);

#endif
