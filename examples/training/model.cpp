#include "examples/training/model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

namespace example {

namespace {

constexpr float learning_rate = 1e-3f;
constexpr float beta_first = 0.9f;
constexpr float beta_second = 0.999f;
constexpr float epsilon = 1e-8f;
constexpr float dropout = 0.1f;

// SplitMix64: the whole state is one number, so that it can be saved.
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  std::uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

float unit(std::uint64_t& state) {
  return static_cast<float>(next_random(state) >> 40) * 0x1.0p-24f;
}

}  // namespace

Model::Model(const ModelOptions& options)
    : seed_(options.seed),
      inputs_(options.inputs),
      batch_(options.batch),
      rank_(options.rank),
      world_(options.world) {
  const std::size_t layer_count = options.hidden_layers + 1;
  if (rank_ >= world_) throw std::invalid_argument("the rank must be below the number of ranks");
  std::size_t offset = 0;
  for (std::size_t index = 0; index < layer_count; ++index) {
    const std::size_t rows = index + 1 == layer_count ? 1 : options.width;
    const std::size_t cols = index == 0 ? options.inputs : options.width;
    layers_.push_back({rows, cols, offset});
    offset += layers_.back().size();
    activations_.emplace_back(cols);
    kept_.emplace_back(cols, 1.0f);
  }
  activations_.emplace_back(1);
  for (std::uint32_t rank = 0; rank < world_; ++rank)
    share_ends_.push_back((rank + 1) * offset / world_);
  weights_.resize(offset);
  gradients_.resize(offset);
  first_moment_.resize(share_ends_[rank_] - own_begin());
  second_moment_.resize(first_moment_.size());

  std::uint64_t random = seed_;
  for (const Layer& layer : layers_) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(layer.cols));
    for (std::size_t index = 0; index < layer.rows * layer.cols; ++index)
      weights_[layer.offset + index] = (2.0f * unit(random) - 1.0f) * scale;
  }
  progress_.random = seed_ * 1'000'003u;
}

std::vector<NamedTensor> Model::tensors() {
  std::vector<NamedTensor> out;
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    const std::string name = "layer" + std::to_string(index);
    const auto rows = static_cast<std::int64_t>(layer.rows);
    const auto cols = static_cast<std::int64_t>(layer.cols);
    add_own_part(name + ".weight", layer.offset, {rows, cols}, out);
    add_own_part(name + ".bias", layer.offset + layer.rows * layer.cols, {rows}, out);
  }
  return out;
}

// The tensor begins at the parameter `begin`. This rank's part of it, and the moments of that part,
// are ranges of the flattened tensor. A reader finds them by the tensor's name and their place.
void Model::add_own_part(std::string name, std::size_t begin, std::vector<std::int64_t> shape,
                         std::vector<NamedTensor>& out) {
  ckpt::Piece piece;
  std::size_t count = 1;
  for (const std::int64_t extent : shape) {
    piece.global_shape.push_back(static_cast<std::uint64_t>(extent));
    count *= static_cast<std::size_t>(extent);
  }
  const std::size_t own_first = std::max(begin, own_begin());
  const std::size_t own_end = std::min(begin + count, share_ends_[rank_]);
  if (own_first >= own_end) return;
  piece.flat_begin = own_first - begin;

  ckpt::TensorRef part;
  part.dtype = ckpt::DType::f32;
  part.shape = {static_cast<std::int64_t>(own_end - own_first)};
  part.guarded = true;  // Only update() changes them, and guard() comes before it.
  if (own_end - own_first == count) {
    part.shape = std::move(shape);  // All of the tensor: it lies here as it is.
  } else {
    part.piece = std::move(piece);
  }
  const std::size_t moment = own_first - own_begin();
  const auto add = [&](const std::string& prefix, float* data) {
    part.data = data;
    out.push_back({prefix + name, part});
  };
  add("", &weights_[own_first]);
  add("adam.first.", &first_moment_[moment]);
  add("adam.second.", &second_moment_[moment]);
}

Model::Sample Model::sample(std::uint64_t position) const {
  Sample out;
  std::uint64_t random = seed_ ^ (position * 0xd1342543de82ef95u);
  out.inputs.resize(inputs_);
  float sum = 0;
  for (std::size_t index = 0; index < inputs_; ++index) {
    out.inputs[index] = 2.0f * unit(random) - 1.0f;
    if (index < 4) sum += index % 2 == 0 ? out.inputs[index] : -out.inputs[index];
  }
  out.target = std::sin(sum);
  return out;
}

float Model::forward(const Sample& sample, std::uint64_t random) {
  activations_[0] = sample.inputs;
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    const bool is_last = index + 1 == layers_.size();
    const float* weights = &weights_[layer.offset];
    const float* bias = weights + layer.rows * layer.cols;
    for (std::size_t row = 0; row < layer.rows; ++row) {
      float sum = bias[row];
      for (std::size_t col = 0; col < layer.cols; ++col)
        sum += weights[row * layer.cols + col] * activations_[index][col];
      if (!is_last) {
        kept_[index + 1][row] = unit(random) < dropout ? 0.0f : 1.0f / (1.0f - dropout);
        sum = std::tanh(sum) * kept_[index + 1][row];
      }
      activations_[index + 1][row] = sum;
    }
  }
  return activations_.back()[0];
}

void Model::backward(float error) {
  std::vector<float> delta{error};
  for (std::size_t index = layers_.size(); index-- > 0;) {
    const Layer& layer = layers_[index];
    const float* weights = &weights_[layer.offset];
    float* gradients = &gradients_[layer.offset];
    std::vector<float> below(layer.cols, 0.0f);
    for (std::size_t row = 0; row < layer.rows; ++row) {
      gradients[layer.rows * layer.cols + row] += delta[row];
      for (std::size_t col = 0; col < layer.cols; ++col) {
        gradients[row * layer.cols + col] += delta[row] * activations_[index][col];
        below[col] += delta[row] * weights[row * layer.cols + col];
      }
    }
    for (std::size_t col = 0; index > 0 && col < layer.cols; ++col) {
      const float kept = kept_[index][col];
      const float tanh = kept == 0.0f ? 0.0f : activations_[index][col] / kept;
      below[col] *= kept * (1.0f - tanh * tanh);
    }
    delta = std::move(below);
  }
}

float Model::compute_gradients() {
  std::fill(gradients_.begin(), gradients_.end(), 0.0f);
  float loss = 0;
  const auto scale = 1.0f / static_cast<float>(batch_);
  const std::uint64_t random = next_random(progress_.random);
  for (std::size_t index = rank_ * batch_ / world_; index < (rank_ + 1) * batch_ / world_;
       ++index) {
    const Sample drawn = sample(progress_.position + index);
    const float error = forward(drawn, random + index) - drawn.target;
    loss += error * error * scale;
    backward(2.0f * error * scale);
  }
  progress_.position += batch_;
  return loss;
}

void Model::update() {
  ++progress_.step;
  const auto step = static_cast<float>(progress_.step);
  const float first_scale = 1.0f / (1.0f - std::pow(beta_first, step));
  const float second_scale = 1.0f / (1.0f - std::pow(beta_second, step));
  const std::size_t begin = own_begin();
  for (std::size_t index = 0; index < first_moment_.size(); ++index) {
    const float gradient = gradients_[begin + index];
    float& first = first_moment_[index];
    float& second = second_moment_[index];
    first = beta_first * first + (1.0f - beta_first) * gradient;
    second = beta_second * second + (1.0f - beta_second) * gradient * gradient;
    weights_[begin + index] -=
        learning_rate * first * first_scale / (std::sqrt(second * second_scale) + epsilon);
  }
}

std::uint64_t Model::digest() const {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const float weight : weights_)
    hash = (hash ^ std::bit_cast<std::uint32_t>(weight)) * 0x100000001b3u;
  return hash;
}

}  // namespace example
