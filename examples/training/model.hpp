// Model: a small network with Adam. Every bit of it follows from its seed, its steps and the number
// of its ranks.
//
// The ranks share the work as ZeRO does: all parameters lie one after the other, and each rank owns
// a range of them. It updates these, keeps their moments, and saves both as pieces of the tensors.
// Any number of ranks can go on from there. The samples of a step and what is dropped do not depend
// on the ranks, so that another number of them only adds up the gradients in another order.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace example {

struct ModelOptions {
  std::uint64_t seed = 1;
  std::size_t inputs = 32;
  std::size_t width = 256;
  std::size_t hidden_layers = 4;
  std::size_t batch = 16;  // Samples of one step, over all ranks.
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
};

// The state besides tensors that must be saved: the progress, the place in the data, the generator.
// It is the same on all ranks.
struct Progress {
  std::uint64_t step = 0;
  std::uint64_t position = 0;  // The next sample's, over all ranks.
  std::uint64_t random = 0;
};

struct NamedTensor {
  std::string name;
  ckpt::TensorRef tensor;
};

class Model {
 public:
  explicit Model(const ModelOptions& options);

  // The tensors that this rank must checkpoint; the references are valid as long as the model.
  std::vector<NamedTensor> tensors();
  std::span<std::byte> progress_bytes() { return std::as_writable_bytes(std::span(&progress_, 1)); }
  const Progress& progress() const { return progress_; }

  // All weights, including other ranks'; the exchange updates them.
  std::span<float> weights() { return weights_; }
  std::span<float> gradients() { return gradients_; }
  // The end of each rank's floats; the first rank's begin at 0.
  const std::vector<std::size_t>& share_ends() const { return share_ends_; }

  // Takes this rank's samples of the next step, and returns their part of its mean loss: the sum
  // over all ranks is the loss. Needs all weights.
  float compute_gradients();
  // Adam on the range of this rank; needs the gradients summed over all ranks.
  void update();

  std::uint64_t digest() const;  // All weights, bit for bit.

 private:
  struct Layer {
    std::size_t rows;    // Outputs.
    std::size_t cols;    // Inputs.
    std::size_t offset;  // The weights' in `weights_`; the bias follows them.
    std::size_t size() const { return rows * cols + rows; }
  };
  struct Sample {
    std::vector<float> inputs;
    float target = 0;
  };

  Sample sample(std::uint64_t position) const;
  float forward(const Sample& sample, std::uint64_t random);
  void backward(float error);
  std::size_t own_begin() const { return rank_ == 0 ? 0 : share_ends_[rank_ - 1]; }
  void add_own_part(std::string name, std::size_t begin, std::vector<std::int64_t> shape,
                    std::vector<NamedTensor>& out);

  std::uint64_t seed_;
  std::size_t inputs_;
  std::size_t batch_;
  std::uint32_t rank_;
  std::uint32_t world_;
  std::vector<Layer> layers_;
  std::vector<std::size_t> share_ends_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::vector<float> first_moment_;   // For the own range.
  std::vector<float> second_moment_;  // For the own range.
  Progress progress_;
  // The activations of the current sample, the input first, and their dropout factors.
  std::vector<std::vector<float>> activations_;
  std::vector<std::vector<float>> kept_;
};

}  // namespace example
