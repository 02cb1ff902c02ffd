// A matrix product on tensor cores: what stands for a trainer's forward and backward pass.
//
// One block makes 128 x 128 of the result with eight warps, from slices in shared memory; n is a
// multiple of 128. Not the fastest that can be had, but it keeps the GPU busy as training does.
#include <cuda_fp16.h>
#include <mma.h>

namespace {

constexpr int tile = 128;   // Elements of the result, by one block.
constexpr int slice = 32;   // Elements of the inner dimension, in shared memory at a time.
constexpr int padding = 8;  // Against conflicts of the banks.
constexpr int threads = 256;
constexpr int vector = 8;  // Halves in one load.
constexpr int side = 16;   // A fragment's.

}  // namespace

// A kernel that stays, as those of collectives do: each block runs for so long.
extern "C" __global__ void stay(unsigned long long nanoseconds) {
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - began < nanoseconds);
}

extern "C" __global__ void gemm(const half* left, const half* right, float* out, int n) {
  using namespace nvcuda::wmma;
  __shared__ half left_slice[tile][slice + padding];
  __shared__ half right_slice[slice][tile + padding];
  const int row = blockIdx.y * tile;
  const int column = blockIdx.x * tile;
  const int warp = threadIdx.x / warpSize;
  const int warp_row = warp / 2 * 32;     // Four warps below one another, of 32 rows each,
  const int warp_column = warp % 2 * 64;  // and two beside one another, of 64 columns each.
  fragment<accumulator, side, side, side, float> sums[2][4];
  for (auto& line : sums)
    for (auto& sum : line) fill_fragment(sum, 0.0f);
  for (int inner = 0; inner < n; inner += slice) {
    for (int i = threadIdx.x * vector; i < tile * slice; i += threads * vector) {
      *reinterpret_cast<uint4*>(&left_slice[i / slice][i % slice]) =
          *reinterpret_cast<const uint4*>(&left[(row + i / slice) * n + inner + i % slice]);
      *reinterpret_cast<uint4*>(&right_slice[i / tile][i % tile]) =
          *reinterpret_cast<const uint4*>(&right[(inner + i / tile) * n + column + i % tile]);
    }
    __syncthreads();
    for (int k = 0; k < slice; k += side) {
      fragment<matrix_a, side, side, side, half, row_major> lefts[2];
      fragment<matrix_b, side, side, side, half, row_major> rights[4];
      for (int i = 0; i < 2; ++i)
        load_matrix_sync(lefts[i], &left_slice[warp_row + i * side][k], slice + padding);
      for (int j = 0; j < 4; ++j)
        load_matrix_sync(rights[j], &right_slice[k][warp_column + j * side], tile + padding);
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) mma_sync(sums[i][j], lefts[i], rights[j], sums[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      store_matrix_sync(&out[(row + warp_row + i * side) * n + column + warp_column + j * side],
                        sums[i][j], n, mem_row_major);
}
