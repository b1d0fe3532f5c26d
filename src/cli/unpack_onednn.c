#include "cli/unpack_onednn.h"

#ifdef NIB_HAVE_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#define CACHED 64

// Making a primitive costs more than running a small one, so those in use are kept for the life of the process.
struct shape {
    int64_t m, n, k;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t source, weights, result;
};

static struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool failed;
    int count;
    struct shape shapes[CACHED];
} cache;

static bool start(void)
{
    if (cache.stream || cache.failed)
        return !cache.failed;
    cache.failed = dnnl_engine_create(&cache.engine, dnnl_cpu, 0) != dnnl_success ||
                   dnnl_stream_create(&cache.stream, cache.engine, dnnl_stream_default_flags) != dnnl_success;
    return !cache.failed;
}

static bool make_shape(struct shape *s, int64_t m, int64_t n, int64_t k)
{
    dnnl_dims_t source = {m, k}, weights = {n, k}, result = {m, n};
    dnnl_inner_product_desc_t desc;
    dnnl_primitive_desc_t primitive_desc;
    *s = (struct shape){.m = m, .n = n, .k = k};
    if (dnnl_memory_desc_init_by_tag(&s->source, 2, source, dnnl_bf16, dnnl_ab) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&s->weights, 2, weights, dnnl_bf16, dnnl_ab) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&s->result, 2, result, dnnl_bf16, dnnl_ab) != dnnl_success ||
        dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_inference, &s->source, &s->weights, NULL,
                                             &s->result) != dnnl_success ||
        dnnl_primitive_desc_create(&primitive_desc, &desc, NULL, cache.engine, NULL) != dnnl_success)
        return false;
    bool made = dnnl_primitive_create(&s->primitive, primitive_desc) == dnnl_success;
    dnnl_primitive_desc_destroy(primitive_desc);
    return made;
}

static const struct shape *find_shape(int64_t m, int64_t n, int64_t k)
{
    for (int i = 0; i < cache.count; i++)
        if (cache.shapes[i].m == m && cache.shapes[i].n == n && cache.shapes[i].k == k)
            return &cache.shapes[i];
    if (cache.count == CACHED) {
        cache.count--;
        dnnl_primitive_destroy(cache.shapes[cache.count].primitive);
    }
    if (!make_shape(&cache.shapes[cache.count], m, n, k))
        return NULL;
    return &cache.shapes[cache.count++];
}

bool onednn_gemm(const uint16_t *a, const uint16_t *b, uint16_t *c, int64_t m, int64_t n, int64_t k, int threads)
{
    omp_set_num_threads(threads);
    const struct shape *s = start() ? find_shape(m, n, k) : NULL;
    if (!s)
        return false;
    dnnl_memory_t source = NULL, weights = NULL, result = NULL;
    bool done = dnnl_memory_create(&source, &s->source, cache.engine, (void *)(uintptr_t)a) == dnnl_success &&
                dnnl_memory_create(&weights, &s->weights, cache.engine, (void *)(uintptr_t)b) == dnnl_success &&
                dnnl_memory_create(&result, &s->result, cache.engine, c) == dnnl_success;
    if (done) {
        dnnl_exec_arg_t arguments[] = {
            {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, result}};
        done = dnnl_primitive_execute(s->primitive, cache.stream, 3, arguments) == dnnl_success &&
               dnnl_stream_wait(cache.stream) == dnnl_success;
    }
    dnnl_memory_destroy(source);
    dnnl_memory_destroy(weights);
    dnnl_memory_destroy(result);
    return done;
}

#else

bool onednn_gemm(const uint16_t *a, const uint16_t *b, uint16_t *c, int64_t m, int64_t n, int64_t k, int threads)
{
    (void)a, (void)b, (void)c, (void)m, (void)n, (void)k, (void)threads;
    return false;
}

#endif
