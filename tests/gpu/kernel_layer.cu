// The time of a layer up to its experts in one launch; its results are checked through the operations (ops_layer.c).
#include "cuda/layer_decode.h"
#include "kernel_check.h"

namespace
{

constexpr int width = 2880, heads = 64, kv_heads = 8, dim = 64, experts = 128, top_k = 4;
constexpr int page_tokens = 64, page_shift = 6, layers = 12, blocks = 132;

// Weights and caches of all layers; buffers that they share.
struct layer_data {
    device_array<uint16_t> weights, keys, values, halves;
    device_array<float> floats;
    device_array<int32_t> numbers;
    device_array<unsigned> counters;
    device_array<float> partial;
    int rows, pages;

    static constexpr size_t qkv = static_cast<size_t>(heads + 2 * kv_heads) * dim * width,
                            o = static_cast<size_t>(heads) * dim * width,
                            router = static_cast<size_t>(experts) * width, layer = qkv + o + router;

    layer_data(int rows, int context)
        : weights(layers * layer),
          keys(static_cast<size_t>(layers) * rows * (context / page_tokens + 1) * page_tokens * kv_heads * dim),
          values(keys.n), halves(static_cast<size_t>(rows) * (heads * dim + width)),
          floats(static_cast<size_t>(rows) * (3 * width + (heads + 2 * kv_heads) * dim + 2 * experts) + 2 * width +
                 9000),
          numbers(static_cast<size_t>(rows) * (4 + context / page_tokens + 3 * top_k) + 64),
          counters(NIB_CUDA_LAYER_COUNTERS), partial(nib_cuda_layer_scratch(blocks) / sizeof(float)), rows(rows),
          pages(context / page_tokens + 1)
    {
        MUST(cudaMemset(weights.data(), 0x3c, weights.bytes()));
        MUST(cudaMemset(keys.data(), 0x3c, keys.bytes()));
        MUST(cudaMemset(values.data(), 0x3c, values.bytes()));
        MUST(cudaMemset(floats.data(), 0x3c, floats.bytes()));
        MUST(cudaMemset(counters.data(), 0, counters.bytes()));
        std::vector<int32_t> host(numbers.n);
        for (int i = 0; i < rows; i++) {
            host[i] = context;
            host[rows + i] = i;
            for (int page = 0; page < pages; page++)
                host[2 * rows + i * pages + page] = i * pages + page;
        }
        numbers.write(host);
    }

    nib_cuda_step step() const
    {
        nib_cuda_step step = {};
        step.n_tokens = step.n_sequences = rows;
        step.page_tokens = page_tokens;
        step.page_shift = page_shift;
        step.table_width = pages;
        step.positions = numbers.data();
        step.sequence_of = numbers.data() + rows;
        return step;
    }

    nib_cuda_layer layer_of(int i, int window) const
    {
        nib_cuda_layer l = {};
        const uint16_t *w = weights.data() + (i % layers) * layer;
        float *x = floats.data(), *branch = x + rows * width, *y = branch + rows * width, *q = y + rows * width,
              *k = q + rows * heads * dim, *v = k + rows * kv_heads * dim, *logits = v + rows * kv_heads * dim,
              *chosen = logits + rows * experts, *constants = chosen + rows * experts;
        int32_t *ids = numbers.data() + 2 * rows + rows * pages;
        size_t cache = static_cast<size_t>(i % layers) * rows * pages * page_tokens * kv_heads * dim;
        const int32_t *tables = numbers.data() + 2 * rows;
        nib_cuda_rotation turn = {constants, 0, dim, 1, false};
        l.x = x;
        l.branch.rows = branch;
        l.norm_weight = constants;
        l.eps = 1e-5f;
        l.qkv.rows = rows;
        l.qkv.cols = width;
        l.qkv.n_outputs = 3;
        l.qkv.outputs[0] = {w, constants, nullptr, q, heads * dim, heads * dim};
        l.qkv.outputs[1] = {
            w + static_cast<size_t>(heads) * dim * width, constants, nullptr, k, kv_heads * dim, kv_heads * dim};
        l.qkv.outputs[2] = {w + static_cast<size_t>(heads + kv_heads) * dim * width,
                            constants,
                            nullptr,
                            v,
                            kv_heads * dim,
                            kv_heads * dim};
        l.fresh = {q,
                   k,
                   v,
                   heads,
                   dim,
                   kv_heads,
                   dim,
                   turn,
                   turn,
                   {keys.data() + cache, kv_heads * dim, tables},
                   {values.data() + cache, kv_heads * dim, tables}};
        l.attention.y_half = halves.data();
        l.attention.q = q;
        l.attention.keys = l.fresh.keys;
        l.attention.values = l.fresh.values;
        l.attention.n_heads = heads;
        l.attention.n_kv_heads = kv_heads;
        l.attention.head_dim = l.attention.v_dim = dim;
        l.attention.window = window;
        l.attention.scale = 0.125f;
        l.attention.value_scale = 1;
        l.attention.sinks = constants;
        l.attention.longest = 1;
        l.o.rows = rows;
        l.o.cols = heads * dim;
        l.o.n_outputs = 1;
        l.o.outputs[0] = {w + qkv, constants, x, x, width, width};
        l.route.x = x;
        l.route.y = y;
        l.route.y_half = halves.data() + rows * heads * dim;
        l.route.norm_weight = constants;
        l.route.eps = 1e-5f;
        l.route.tokens = rows;
        l.route.width = width;
        l.route.weight = w + qkv + o;
        l.route.bias = constants;
        l.route.logits = logits;
        l.route.router.n_experts = experts;
        l.route.router.top_k = top_k;
        l.route.router.scale = 1;
        l.route.ids = ids;
        l.route.log = ids + rows * top_k;
        l.route.weights = chosen;
        l.partial = partial.data();
        l.counters = counters.data();
        return l;
    }
};

void time_case(int rows, int context, int window, double read_rate)
{
    layer_data data(rows, context);
    nib_cuda_step step = data.step();
    nib_cuda_layer first = data.layer_of(0, window);
    expect(nib_cuda_layer_takes(&first, blocks), "the layer's shape is taken");
    double us = time_calls(layers, [&](cudaStream_t stream, int i) {
        nib_cuda_layer layer = data.layer_of(i, window);
        return nib_cuda_run_layer(stream, &step, &layer, blocks);
    });
    double seen = window && window < context ? window : context;
    double bytes = layer_data::layer * 2.0 + rows * seen * kv_heads * dim * 4;
    printf("layer window %3d rows %2d: %8.2f us  %5.0f GB/s  %.2f of the read\n", window, rows, us,
           bytes / us * 1e-3, bytes / us * 1e-3 / read_rate);
}

} // namespace

void time_layers(double read_rate)
{
    for (int rows : {1, 2, 4, 8})
        for (int window : {0, 128})
            time_case(rows, 2048, window, read_rate);
}
