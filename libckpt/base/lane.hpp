// Lane: marks functions that both compilers take: the GPU's for a lane of a kernel, and the C++
// compiler for what the processor does and what the tests run.
#pragma once

#ifdef __CUDACC__
#define CKPT_LANE __device__ inline
#else
#define CKPT_LANE inline
#endif
