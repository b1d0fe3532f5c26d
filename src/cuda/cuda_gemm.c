#include "cuda/cuda_gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { SHAPES = 64 };

#define WORKSPACE ((size_t)32 << 20)

// The few functions of the library that are used, by their own names.
struct library {
    void *handle;
    cublasStatus_t (*cublasLtCreate)(cublasLtHandle_t *);
    cublasStatus_t (*cublasLtDestroy)(cublasLtHandle_t);
    cublasStatus_t (*cublasLtMatmulDescCreate)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*cublasLtMatmulDescDestroy)(cublasLtMatmulDesc_t);
    cublasStatus_t (*cublasLtMatmulDescSetAttribute)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                                     const void *, size_t);
    cublasStatus_t (*cublasLtMatrixLayoutCreate)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t,
                                                 int64_t);
    cublasStatus_t (*cublasLtMatrixLayoutDestroy)(cublasLtMatrixLayout_t);
    cublasStatus_t (*cublasLtMatmulPreferenceCreate)(cublasLtMatmulPreference_t *);
    cublasStatus_t (*cublasLtMatmulPreferenceDestroy)(cublasLtMatmulPreference_t);
    cublasStatus_t (*cublasLtMatmulPreferenceSetAttribute)(cublasLtMatmulPreference_t,
                                                           cublasLtMatmulPreferenceAttributes_t, const void *,
                                                           size_t);
    cublasStatus_t (*cublasLtMatmulAlgoGetHeuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatmulPreference_t, int,
                                                     cublasLtMatmulHeuristicResult_t *, int *);
    cublasStatus_t (*cublasLtMatmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                                     cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,
                                     const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
                                     const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t);
};

// A shape's descriptors and the library's choice.
struct shape {
    int64_t rows, cols, out, y_pitch;
    bool bias, accumulate;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t weight, x, y;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    uint64_t used;
};

struct nib_cuda_gemm {
    struct library library;
    cublasLtHandle_t handle;
    void *workspace;
    struct shape shapes[SHAPES];
    int n_shapes;
    uint64_t calls;
};

static bool load(struct library *l)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib/libcublasLt.so.13"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !l->handle; i++)
        l->handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!l->handle)
        return false;
    const struct {
        const char *name;
        void *target;
    } functions[] = {
        {"cublasLtCreate", &l->cublasLtCreate},
        {"cublasLtDestroy", &l->cublasLtDestroy},
        {"cublasLtMatmulDescCreate", &l->cublasLtMatmulDescCreate},
        {"cublasLtMatmulDescDestroy", &l->cublasLtMatmulDescDestroy},
        {"cublasLtMatmulDescSetAttribute", &l->cublasLtMatmulDescSetAttribute},
        {"cublasLtMatrixLayoutCreate", &l->cublasLtMatrixLayoutCreate},
        {"cublasLtMatrixLayoutDestroy", &l->cublasLtMatrixLayoutDestroy},
        {"cublasLtMatmulPreferenceCreate", &l->cublasLtMatmulPreferenceCreate},
        {"cublasLtMatmulPreferenceDestroy", &l->cublasLtMatmulPreferenceDestroy},
        {"cublasLtMatmulPreferenceSetAttribute", &l->cublasLtMatmulPreferenceSetAttribute},
        {"cublasLtMatmulAlgoGetHeuristic", &l->cublasLtMatmulAlgoGetHeuristic},
        {"cublasLtMatmul", &l->cublasLtMatmul},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(l->handle, functions[i].name);
        if (!found)
            return false;
        memcpy(functions[i].target, &found, sizeof found);
    }
    return true;
}

nib_status nib_cuda_gemm_create(struct nib_cuda_gemm **gemm, const char **why, struct nib_error *err)
{
    *gemm = NULL;
    *why = "products of more than 32 rows by cuBLASLt";
    struct nib_cuda_gemm *made = calloc(1, sizeof *made);
    if (!made)
        return nib_fail_memory(err, sizeof *made, "cuBLASLt");
    if (!load(&made->library)) {
        *why = "libcublasLt is not to be had: products of many rows run in pieces of 64, far slower";
        nib_cuda_gemm_free(made);
        return NIB_OK;
    }
    if (made->library.cublasLtCreate(&made->handle) != CUBLAS_STATUS_SUCCESS) {
        nib_cuda_gemm_free(made);
        return nib_fail(err, NIB_ERR_IO, "cuda: cuBLASLt cannot be started");
    }
    if (cudaMalloc(&made->workspace, WORKSPACE) != cudaSuccess) {
        nib_cuda_gemm_free(made);
        return nib_fail(err, NIB_ERR_MEMORY, "cuda: out of device memory: %zu bytes for cuBLASLt", WORKSPACE);
    }
    *gemm = made;
    return NIB_OK;
}

static void free_shape(const struct library *l, struct shape *s)
{
    if (s->desc)
        l->cublasLtMatmulDescDestroy(s->desc);
    if (s->weight)
        l->cublasLtMatrixLayoutDestroy(s->weight);
    if (s->x)
        l->cublasLtMatrixLayoutDestroy(s->x);
    if (s->y)
        l->cublasLtMatrixLayoutDestroy(s->y);
    memset(s, 0, sizeof *s);
}

void nib_cuda_gemm_free(struct nib_cuda_gemm *gemm)
{
    if (!gemm)
        return;
    for (int i = 0; i < gemm->n_shapes; i++)
        free_shape(&gemm->library, &gemm->shapes[i]);
    if (gemm->handle)
        gemm->library.cublasLtDestroy(gemm->handle);
    cudaFree(gemm->workspace);
    if (gemm->library.handle)
        dlclose(gemm->library.handle);
    free(gemm);
}

static bool describe(struct nib_cuda_gemm *gemm, struct shape *s, const struct nib_cuda_gemm_call *call)
{
    const struct library *l = &gemm->library;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    uint64_t out = (uint64_t)call->out, rows = (uint64_t)call->rows, cols = (uint64_t)call->cols;
    // In the library's column-major terms: y^T [out, rows] = (weight^T [cols, out])^T * x^T [cols, rows].
    if (l->cublasLtMatmulDescCreate(&s->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        l->cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ||
        l->cublasLtMatrixLayoutCreate(&s->weight, CUDA_R_16BF, cols, out, call->cols) ||
        l->cublasLtMatrixLayoutCreate(&s->x, CUDA_R_16BF, cols, rows, call->cols) ||
        l->cublasLtMatrixLayoutCreate(&s->y, CUDA_R_32F, out, rows, call->y_pitch))
        return false;
    if (call->bias &&
        (l->cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
         l->cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call->bias,
                                           sizeof call->bias)))
        return false;
    return true;
}

static bool choose(struct nib_cuda_gemm *gemm, struct shape *s)
{
    const struct library *l = &gemm->library;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    size_t most = WORKSPACE;
    int found = 0;
    bool fine = l->cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS &&
                l->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        &most, sizeof most) == CUBLAS_STATUS_SUCCESS &&
                l->cublasLtMatmulAlgoGetHeuristic(gemm->handle, s->desc, s->weight, s->x, s->y, s->y, preference,
                                                  1, &result, &found) == CUBLAS_STATUS_SUCCESS &&
                found > 0;
    if (preference)
        l->cublasLtMatmulPreferenceDestroy(preference);
    if (fine) {
        s->algorithm = result.algo;
        s->workspace = result.workspaceSize;
    }
    return fine;
}

// The shape's entry, made when it is new in place of the one that was not used for longest.
static struct shape *find_shape(struct nib_cuda_gemm *gemm, const struct nib_cuda_gemm_call *call)
{
    struct shape *oldest = &gemm->shapes[0];
    for (int i = 0; i < gemm->n_shapes; i++) {
        struct shape *s = &gemm->shapes[i];
        if (s->rows == call->rows && s->cols == call->cols && s->out == call->out && s->y_pitch == call->y_pitch &&
            s->bias == (call->bias != NULL) && s->accumulate == call->accumulate)
            return s;
        if (s->used < oldest->used)
            oldest = s;
    }
    struct shape *s = gemm->n_shapes < SHAPES ? &gemm->shapes[gemm->n_shapes++] : oldest;
    free_shape(&gemm->library, s);
    *s = (struct shape){.rows = call->rows,
                        .cols = call->cols,
                        .out = call->out,
                        .y_pitch = call->y_pitch,
                        .bias = call->bias != NULL,
                        .accumulate = call->accumulate};
    if (describe(gemm, s, call) && choose(gemm, s))
        return s;
    free_shape(&gemm->library, s);
    return NULL;
}

cudaError_t nib_cuda_gemm_run(struct nib_cuda_gemm *gemm, cudaStream_t stream,
                              const struct nib_cuda_gemm_call *call)
{
    const struct library *l = &gemm->library;
    struct shape *s = find_shape(gemm, call);
    if (!s)
        return cudaErrorNotSupported;
    s->used = ++gemm->calls;
    if (call->bias && l->cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call->bias,
                                                        sizeof call->bias) != CUBLAS_STATUS_SUCCESS)
        return cudaErrorUnknown;
    float one = 1, beta = call->accumulate ? 1 : 0;
    cublasStatus_t status =
        l->cublasLtMatmul(gemm->handle, s->desc, &one, call->weight, s->weight, call->x, s->x, &beta, call->y,
                          s->y, call->y, s->y, &s->algorithm, gemm->workspace, s->workspace, stream);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}
