// Launching a kernel that may be set up while the one before it still runs. Every kernel launched so calls
// wait_for_previous_kernel before it touches what the one before writes, and allow_next_kernel only after that: so when a
// kernel starts, all but the one before it have ended, and what they wrote can be read at once.
#ifndef NIB_CUDA_LAUNCH_CUH
#define NIB_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

// The grid's blocks form clusters of `cluster` side by side; 1: those that the kernel declares, or none.
template <typename... Parameters, typename... Arguments>
cudaError_t nib_launch_clusters(void (*kernel)(Parameters...), dim3 grid, unsigned cluster, unsigned threads,
                                size_t shared, cudaStream_t stream, Arguments... arguments)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t nib_launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared,
                       cudaStream_t stream, Arguments... arguments)
{
    return nib_launch_clusters(kernel, grid, 1, threads, shared, stream, arguments...);
}

#endif
