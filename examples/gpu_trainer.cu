// A small trainer on one GPU: matrix products, Adam, and libckpt. Kill it whenever you like and
// start it again: it goes on after the newest step, and in the end it trains once more from the
// beginning without libckpt, to show that both have the same weights, bit for bit.
//
//   ckpt_gpu_trainer [steps] [directory]
//
// The lines marked with >>> are libckpt's.
#include <cuda_runtime.h>

#include <ckpt/ckpt.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr int width = 512;  // The one layer's: y = x W, to be like x T for a hidden T.
constexpr int batch = 128;
constexpr int exit_no_gpu = 77;
constexpr int exit_libckpt = 2;

void must(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}

// The same numbers at every call.
__device__ float noise(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t value = seed * 0x9e3779b97f4a7c15ull + index * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 30)) * 0x94d049bb133111ebull;
  return static_cast<float>((value >> 40) & 0xffff) / 32768.0f - 1.0f;
}

__global__ void fill_noise(float* target, int count, std::uint64_t seed, float scale) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) target[i] = scale * noise(seed, i);
}

// out[rows, columns] = left[rows, inner] * right[inner, columns]; `transposed`: left is [inner,
// rows]. Each sum is taken by one thread in one order: the same bits each time.
__global__ void multiply(const float* left, const float* right, float* out, int rows, int columns,
                         int inner, bool transposed) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= rows || column >= columns) return;
  float sum = 0;
  for (int k = 0; k < inner; ++k)
    sum += (transposed ? left[k * rows + row] : left[row * inner + k]) * right[k * columns + column];
  out[row * columns + column] = sum;
}

__global__ void subtract(float* values, const float* wanted, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = (values[i] - wanted[i]) / batch;
}

// In place: the update that must not overtake a capture.
__global__ void adam(float* weight, float* first, float* second, const float* gradient, int count,
                     int step) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  first[i] = 0.9f * first[i] + 0.1f * gradient[i];
  second[i] = 0.999f * second[i] + 0.001f * gradient[i] * gradient[i];
  const float mean = first[i] / (1 - powf(0.9f, step));
  const float square = second[i] / (1 - powf(0.999f, step));
  weight[i] -= 0.01f * mean / (sqrtf(square) + 1e-8f);
}

class Matrix {
 public:
  Matrix(int rows, int columns) : count_(rows * columns) {
    must(cudaMalloc(&data_, bytes()), "allocate memory of the GPU");
    must(cudaMemset(data_, 0, bytes()), "clear it");
  }
  ~Matrix() { cudaFree(data_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  float* data() { return data_; }
  int count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(float); }

 private:
  int count_;
  float* data_ = nullptr;
};

class Model {
 public:
  Model() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
    must(cudaDeviceSynchronize(), "clear the weights");
    fill(hidden_, 1, 1.0f);
    fill(weight_, 2, 0.1f);
  }
  ~Model() { cudaStreamDestroy(stream_); }

  void forward_and_backward(std::uint64_t step) {
    fill(input_, 1000 + step, 1.0f);
    product(input_, hidden_, wanted_, batch, width, width, false);
    product(input_, weight_, output_, batch, width, width, false);
    subtract<<<blocks(output_), 256, 0, stream_>>>(output_.data(), wanted_.data(), output_.count());
    product(input_, output_, gradient_, width, width, batch, true);
  }
  void update(std::uint64_t step) {
    adam<<<blocks(weight_), 256, 0, stream_>>>(weight_.data(), first_.data(), second_.data(),
                                               gradient_.data(), weight_.count(),
                                               static_cast<int>(step));
    must(cudaGetLastError(), "queue a step");
  }
  std::vector<float> weights() {
    std::vector<float> out(static_cast<std::size_t>(weight_.count()));
    must(cudaStreamSynchronize(stream_), "train");
    must(cudaMemcpy(out.data(), weight_.data(), weight_.bytes(), cudaMemcpyDefault), "read them");
    return out;
  }
  ckpt::Stream stream() const { return {stream_}; }

  // The optimizer's tensors, which nothing else changes.
  ckpt::Status register_with(ckpt::Checkpointer& checkpointer) {
    for (auto& [name, matrix] : {std::pair<const char*, Matrix*>{"weight", &weight_},
                                 {"adam.first", &first_},
                                 {"adam.second", &second_}}) {
      ckpt::TensorRef tensor;
      tensor.data = matrix->data();
      tensor.dtype = ckpt::DType::f32;
      tensor.shape = {width, width};
      tensor.location = ckpt::Location::cuda;
      tensor.guarded = true;
      if (auto added = checkpointer.add(name, tensor); !added) return added;
    }
    return {};
  }

 private:
  static int blocks(const Matrix& matrix) { return (matrix.count() + 255) / 256; }
  void fill(Matrix& matrix, std::uint64_t seed, float scale) {
    fill_noise<<<blocks(matrix), 256, 0, stream_>>>(matrix.data(), matrix.count(), seed, scale);
  }
  void product(Matrix& left, Matrix& right, Matrix& out, int rows, int columns, int inner,
               bool transposed) {
    const dim3 grid((columns + 15) / 16, (rows + 15) / 16);
    multiply<<<grid, dim3(16, 16), 0, stream_>>>(left.data(), right.data(), out.data(), rows,
                                                 columns, inner, transposed);
  }

  cudaStream_t stream_ = nullptr;
  Matrix hidden_{width, width}, weight_{width, width}, first_{width, width}, second_{width, width};
  Matrix input_{batch, width}, wanted_{batch, width}, output_{batch, width};
  Matrix gradient_{width, width};
};

int complain(const ckpt::Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return exit_libckpt;
}

}  // namespace

int main(int count, char** arguments) {
  int gpus = 0;
  const cudaError_t counted = cudaGetDeviceCount(&gpus);
  if (counted != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "there is no GPU here: %s\n", cudaGetErrorString(counted));
    return exit_no_gpu;
  }
  const std::uint64_t steps = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 300;
  Model model;

  ckpt::Options options;  // >>>
  options.job = "gpu-example";
  options.dir = count > 2 ? arguments[2] : "";
  auto checkpointer = ckpt::Checkpointer::open(options);
  if (!checkpointer) return complain(checkpointer.error());
  if (auto added = model.register_with(*checkpointer); !added) return complain(added.error());
  std::uint64_t step = 0;
  if (const auto restored = checkpointer->restore()) {
    step = ckpt::number(restored->step);
    std::printf("goes on after step %llu, from %s\n", static_cast<unsigned long long>(step),
                restored->source_name.c_str());
  } else if (restored.error().code() != ckpt::Errc::not_found) {
    return complain(restored.error());
  }

  while (step < steps) {
    model.forward_and_backward(++step);
    (void)checkpointer->guard(model.stream());  // >>>
    model.update(step);
    const auto saved =
        checkpointer->save_checkpoint_if_needed(ckpt::Step{step}, model.stream());  // >>>
    if (!saved) std::fprintf(stderr, "%s\n", saved.error().message().c_str());  // Train on.
  }
  const std::vector<float> found = model.weights();
  if (const auto closed = checkpointer->close(); !closed) return complain(closed.error());  // >>>

  Model again;
  for (std::uint64_t i = 1; i <= steps; ++i) {
    again.forward_and_backward(i);
    again.update(i);
  }
  const std::vector<float> expected = again.weights();
  if (std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) != 0) {
    std::printf("the weights differ from those of an uninterrupted run\n");
    return 1;
  }
  std::printf("step %llu: the weights are those of an uninterrupted run, bit for bit\n",
              static_cast<unsigned long long>(steps));
  return 0;
}
