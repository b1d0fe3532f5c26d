#include "cli/synthetic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/map.h"
#include "cli/progress.h"
#include "model/model.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 // Linux 6.1
#endif

// The released configs' values, for the whole model or for some of its layers. Where only layers are meant, the vocabulary
// is small, so that the head does not count.
#define GPT_OSS                                                                                                   \
    "{\"model_type\": \"gpt_oss\", \"hidden_size\": 2880, \"intermediate_size\": 2880, \"num_attention_heads\": " \
    "64,"                                                                                                         \
    " \"num_key_value_heads\": 8, \"head_dim\": 64, \"num_experts_per_tok\": 4, \"vocab_size\": 201088,"          \
    " \"sliding_window\": 128, \"swiglu_limit\": 7.0, \"max_position_embeddings\": 131072, \"rms_norm_eps\": "    \
    "1e-05,"                                                                                                      \
    " \"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0," \
    " \"beta_slow\": 1.0, \"original_max_position_embeddings\": 4096, \"truncate\": false}, \"eos_token_id\": "   \
    "200002,"
static const struct {
    const char *name, *config;
} shapes[] = {
    {"gpt-oss-20b", GPT_OSS " \"num_hidden_layers\": 24, \"num_local_experts\": 32}\n"},
    {"gpt-oss-120b", GPT_OSS " \"num_hidden_layers\": 36, \"num_local_experts\": 128}\n"},
    {"kimi-k2-layer",
     "{\"model_type\": \"kimi_k2\", \"hidden_size\": 7168, \"num_hidden_layers\": 3, \"vocab_size\": 2048,"
     " \"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, \"n_routed_experts\": 384,"
     " \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"first_k_dense_replace\": 1, \"n_group\": 1,"
     " \"topk_group\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.827, \"num_attention_heads\": 64,"
     " \"num_key_value_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128,"
     " \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"max_position_embeddings\": 262144, \"rms_norm_eps\": "
     "1e-05,"
     " \"rope_theta\": 50000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 64.0, \"beta_fast\": 32.0,"
     " \"beta_slow\": 1.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096},"
     " \"eos_token_id\": 2047}\n"},
    {"mimo-v2-flash-layers",
     "{\"model_type\": \"mimo_v2_flash\", \"hidden_size\": 4096, \"num_hidden_layers\": 3, \"vocab_size\": 2048,"
     " \"intermediate_size\": 16384, \"moe_intermediate_size\": 2048, \"n_routed_experts\": 256,"
     " \"num_experts_per_tok\": 8, \"num_attention_heads\": 64, \"num_key_value_heads\": 4,"
     " \"swa_num_key_value_heads\": 8, \"head_dim\": 192, \"v_head_dim\": 128, \"attention_value_scale\": 0.707,"
     " \"partial_rotary_factor\": 0.334, \"rope_theta\": 5000000, \"swa_rope_theta\": 10000,"
     " \"sliding_window\": 128, \"hybrid_layer_pattern\": [0, 1, 1], \"moe_layer_freq\": [0, 1, 1],"
     " \"max_position_embeddings\": 262144, \"layernorm_epsilon\": 1e-05, \"eos_token_id\": 2047}\n"},
};

const char *synthetic_shapes(void)
{
    return "gpt-oss-20b|gpt-oss-120b|kimi-k2-layer|mimo-v2-flash-layers";
}

// What fills a tensor.
enum content { NORM, BF16_WEIGHTS, CODES, SCALES };

struct entry {
    uint64_t offset, bytes;
    enum content content;
};

struct layout {
    char *header; // JSON, growing
    size_t header_size, header_capacity;
    struct entry *entries; /* [count] */
    size_t count, capacity;
    uint64_t bytes; // of data so far
};

static nib_status add_text(struct layout *layout, const char *text, struct nib_error *err)
{
    size_t length = strlen(text);
    if (layout->header_size + length + 1 > layout->header_capacity) {
        size_t capacity = 2 * layout->header_capacity + length + 4096;
        char *grown = realloc(layout->header, capacity);
        if (!grown)
            return nib_fail_memory(err, capacity, "a safetensors header");
        layout->header = grown;
        layout->header_capacity = capacity;
    }
    memcpy(layout->header + layout->header_size, text, length + 1);
    layout->header_size += length;
    return NIB_OK;
}

static enum content content_of(const struct nib_tensor_spec *spec)
{
    if (strstr(spec->name, "norm"))
        return NORM;
    if (spec->dtype == NIB_U8)
        return strstr(spec->name, "scale") ? SCALES : CODES;
    return BF16_WEIGHTS;
}

static nib_status add_tensor(void *user, const struct nib_tensor_spec *spec, struct nib_error *err)
{
    struct layout *layout = user;
    uint64_t bytes = nib_dtype_size(spec->dtype);
    char shape[128] = "", line[512];
    for (int d = 0; d < spec->rank; d++) {
        size_t used = strlen(shape);
        snprintf(shape + used, sizeof shape - used, "%s%lld", d ? "," : "", (long long)spec->shape[d]);
        if (!nib_mul_u64(bytes, (uint64_t)spec->shape[d], &bytes))
            return nib_fail(err, NIB_ERR_LIMIT, "tensor %s has too many elements", spec->name);
    }
    if (layout->count == layout->capacity) {
        size_t capacity = 2 * layout->capacity + 256;
        struct entry *grown = realloc(layout->entries, capacity * sizeof *grown);
        if (!grown)
            return nib_fail_memory(err, capacity * sizeof *grown, "a list of tensors");
        layout->entries = grown;
        layout->capacity = capacity;
    }
    layout->entries[layout->count++] = (struct entry){layout->bytes, bytes, content_of(spec)};
    snprintf(line, sizeof line, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
             layout->count == 1 ? "{" : ",", spec->name, nib_dtype_name(spec->dtype), shape,
             (unsigned long long)layout->bytes, (unsigned long long)(layout->bytes + bytes));
    layout->bytes += bytes;
    return add_text(layout, line, err);
}

static uint64_t mix(uint64_t z) // splitmix64's finaliser
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t word_of(enum content content, uint64_t random)
{
    switch (content) {
    case NORM:
        return 0x3f803f803f803f80u; // bf16 1.0
    case BF16_WEIGHTS:
        return (random & 0x81ff81ff81ff81ffu) | 0x3c003c003c003c00u; // ±2^-7 … ±2^-3
    case SCALES:
        return 0x7676767676767676u + (random & 0x0303030303030303u); // 2^-9 … 2^-6
    case CODES:
        break;
    }
    return random;
}

static void fill(uint8_t *data, const struct entry *entry)
{
    uint64_t words = entry->bytes / 8;
#pragma omp parallel for num_threads(nib_thread_limit()) schedule(static)
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word = word_of(entry->content, mix(entry->offset + (i + 1) * 0x9e3779b97f4a7c15u));
        memcpy(data + 8 * i, &word, 8);
    }
    uint64_t last = word_of(entry->content, mix(entry->offset));
    memcpy(data + 8 * words, &last, entry->bytes % 8);
}

static nib_status write_weights(struct synthetic *synthetic, struct layout *layout, bool empty,
                                struct nib_error *err)
{
    while (layout->header_size % 8)
        if (add_text(layout, " ", err))
            return err->status;
    uint64_t header = layout->header_size, start = 8 + header, size = start + layout->bytes;
    uint64_t available = nib_memory_available();
    if (size > available && !empty)
        return nib_fail(err, NIB_ERR_MEMORY, "random weights of %.2f GiB do not fit the %.2f GiB available",
                        (double)size / 0x1p30, (double)available / 0x1p30);
    synthetic->file = memfd_create("nibble-synthetic", MFD_CLOEXEC);
    if (synthetic->file < 0 || ftruncate(synthetic->file, (off_t)size) != 0)
        return nib_fail(err, NIB_ERR_IO, "a memory file of %llu bytes: %s", (unsigned long long)size,
                        strerror(errno));
    uint8_t *map = nib_map_pages(size, PROT_READ | PROT_WRITE, MAP_SHARED, synthetic->file);
    if (map == MAP_FAILED)
        return nib_fail(err, NIB_ERR_IO, "mapping %llu bytes: %s", (unsigned long long)size, strerror(errno));
    memcpy(map, &header, 8);
    memcpy(map + 8, layout->header, header);
    struct nib_progress bar;
    nib_progress_begin(&bar, "random weights", empty ? 0 : (int64_t)(layout->bytes >> 20), "MiB");
    for (size_t i = 0; i < layout->count && !empty; i++) {
        fill(map + start + layout->entries[i].offset, &layout->entries[i]);
        nib_progress_update(&bar, (int64_t)(layout->entries[i].offset >> 20));
    }
    nib_progress_end(&bar);
    // A checkpoint on disk comes in large pages where the kernel can; of memory files most kernels must be told afterwards.
    if (!empty)
        madvise(map, size, MADV_COLLAPSE);
    munmap(map, size);
    return NIB_OK;
}

static nib_status write_folder(struct synthetic *synthetic, const char *config, struct nib_error *err)
{
    const char *parent = getenv("TMPDIR");
    char path[SYNTHETIC_PATH + 32], target[64];
    int length =
        snprintf(synthetic->folder, sizeof synthetic->folder, "%s/nibble-XXXXXX", parent ? parent : "/tmp");
    if (length >= (int)sizeof synthetic->folder) {
        synthetic->folder[0] = 0;
        return nib_fail(err, NIB_ERR_LIMIT, "TMPDIR: a path of %d bytes is too long", length);
    }
    if (!mkdtemp(synthetic->folder)) {
        nib_fail(err, NIB_ERR_IO, "%s: %s", synthetic->folder, strerror(errno));
        synthetic->folder[0] = 0;
        return NIB_ERR_IO;
    }
    snprintf(path, sizeof path, "%s/config.json", synthetic->folder);
    FILE *file = fopen(path, "we");
    if (!file || fputs(config, file) < 0 || fclose(file) != 0)
        return nib_fail(err, NIB_ERR_IO, "%s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/model.safetensors", synthetic->folder);
    snprintf(target, sizeof target, "/proc/%d/fd/%d", (int)getpid(), synthetic->file);
    if (symlink(target, path) != 0)
        return nib_fail(err, NIB_ERR_IO, "%s: %s", path, strerror(errno));
    return NIB_OK;
}

nib_status synthetic_create(struct synthetic *synthetic, const char *shape, bool empty, struct nib_error *err)
{
    *synthetic = (struct synthetic){0};
    size_t which = 0;
    while (which < sizeof shapes / sizeof *shapes && strcmp(shapes[which].name, shape) != 0)
        which++;
    if (which == sizeof shapes / sizeof *shapes)
        return nib_fail(err, NIB_ERR_ARGUMENT, "no shape is called \"%s\" (%s)", shape, synthetic_shapes());
    const char *text = shapes[which].config;

    struct nib_config *config = NULL;
    struct nib_model *model = NULL;
    struct layout layout = {0};
    nib_status status = nib_config_parse(text, strlen(text), shape, &config, err);
    if (!status)
        status = nib_model_create(config, &model, err);
    if (!status)
        status = model->family->each_tensor(model, add_tensor, &layout, err);
    if (!status)
        status = add_text(&layout, "}", err);
    if (!status)
        status = write_weights(synthetic, &layout, empty, err);
    if (!status)
        status = write_folder(synthetic, text, err);
    free(layout.header);
    free(layout.entries);
    nib_model_free(model);
    nib_config_free(config);
    if (status)
        synthetic_remove(synthetic);
    return status;
}

void synthetic_remove(struct synthetic *synthetic)
{
    char path[SYNTHETIC_PATH + 32];
    if (synthetic->folder[0]) {
        snprintf(path, sizeof path, "%s/config.json", synthetic->folder);
        unlink(path);
        snprintf(path, sizeof path, "%s/model.safetensors", synthetic->folder);
        unlink(path);
        rmdir(synthetic->folder);
    }
    if (synthetic->file > 0)
        close(synthetic->file);
    *synthetic = (struct synthetic){0};
}
