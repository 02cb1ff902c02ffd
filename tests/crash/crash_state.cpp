#include "crash_state.hpp"

#include <cstring>
#include <span>

namespace crash {

namespace {

// Two guarded tensors and one that is not; sizes that are no multiple of a page or of each other.
constexpr std::size_t tensor_words[] = {37'500, 38'001, 37'003};
// Held by all ranks: large enough to be divided among a few of them.
constexpr std::size_t shared_words = 140'003;
constexpr std::uint32_t of_all_ranks = 1000;
constexpr std::uint64_t frozen_part = 98;  // Of step 0, at every step.
constexpr std::size_t position_words = 9;
constexpr const char* sampler_name = "sampler";

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

std::uint64_t key(std::uint32_t rank, std::uint64_t step, std::uint64_t part) {
  return mix(mix(mix(step + 1) ^ (std::uint64_t{rank} << 40)) + part);
}

std::uint64_t word(std::uint64_t key, std::uint64_t index) {
  return (key + index * 0x9e3779b97f4a7c15ull) ^ (key >> 29);
}

void fill(std::span<std::uint64_t> words, std::uint64_t key) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(key, i);
}

std::string difference_of(std::span<const std::uint64_t> words, std::uint64_t key,
                          const std::string& name) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != word(key, i)) return name + " differs at word " + std::to_string(i);
  }
  return {};
}

std::vector<std::uint64_t> sampler(std::uint32_t rank, std::uint64_t step) {
  std::vector<std::uint64_t> words(1 + step % 613);
  fill(words, key(rank, step, 100));
  return words;
}

}  // namespace

State::State(Place place, const Gpu* gpu) : place_(place), gpu_(gpu), position_(position_words) {
  for (const std::size_t words : tensor_words) tensors_.emplace_back(words);
  if (place_.world_size > 1) tensors_.emplace_back(shared_words);
  places_.resize(tensors_.size());
  frozen_.resize(place_.frozen_bytes / sizeof(std::uint64_t));
  fill(frozen_, key(place_.rank, 0, frozen_part));
  for (std::size_t i = 0; gpu_ != nullptr && i + 1 < tensors_.size(); ++i)
    places_[i] = gpu_->allocate(tensors_[i].size() * sizeof(std::uint64_t));
}

bool State::is_shared(std::size_t tensor) const {
  return tensor >= std::size(tensor_words);
}

std::uint64_t State::key_of(std::size_t tensor, std::uint64_t step) const {
  return key(is_shared(tensor) ? of_all_ranks : place_.rank, step, tensor);
}

ckpt::Status State::register_with(ckpt::Checkpointer& checkpointer) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    ckpt::TensorRef tensor;
    tensor.data = is_on_gpu(i) ? places_[i] : tensors_[i].data();
    tensor.location = is_on_gpu(i) ? ckpt::Location::cuda : ckpt::Location::host;
    tensor.dtype = ckpt::DType::u64;
    tensor.shape = {static_cast<std::int64_t>(tensors_[i].size())};
    tensor.guarded = i != 1;
    if (is_shared(i))
      tensor.piece = ckpt::Piece{{shared_words}, {0}, {}, {}, place_.rank, place_.world_size};
    CKPT_CHECK(checkpointer.add("tensor" + std::to_string(i), tensor));
  }
  if (!frozen_.empty()) {
    ckpt::TensorRef tensor;
    tensor.data = frozen_.data();
    tensor.dtype = ckpt::DType::u64;
    tensor.shape = {static_cast<std::int64_t>(frozen_.size())};
    CKPT_CHECK(checkpointer.add("frozen", tensor));
  }
  return checkpointer.add_blob("position", std::as_writable_bytes(std::span(position_)));
}

bool State::compute(std::uint64_t step) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    fill(tensors_[i], key_of(i, step));
    const bool is_good =
        !is_on_gpu(i) || gpu_->write(places_[i], std::as_bytes(std::span(tensors_[i])));
    if (!is_good) return false;
  }
  fill(position_, key(place_.rank, step, 99));
  return true;
}

ckpt::Status State::hand_over(ckpt::FrameworkCheckpointer& checkpointer, std::uint64_t step) const {
  const auto words = sampler(place_.rank, step);
  return checkpointer.set_blob(sampler_name, std::as_bytes(std::span(words)));
}

std::string State::difference(const ckpt::FrameworkCheckpointer& checkpointer,
                              std::uint64_t step) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    std::vector<std::uint64_t> words = tensors_[i];
    if (is_on_gpu(i)) gpu_->read(std::as_writable_bytes(std::span(words)), places_[i]);
    auto text = difference_of(words, key_of(i, step), "tensor" + std::to_string(i));
    if (!text.empty()) return text;
  }
  auto text = difference_of(frozen_, key(place_.rank, 0, frozen_part), "frozen");
  if (!text.empty()) return text;
  text = difference_of(position_, key(place_.rank, step, 99), "position");
  if (!text.empty()) return text;
  const auto expected = sampler(place_.rank, step);
  const auto found = checkpointer.blob(sampler_name);
  if (!found) return "the blob sampler is missing";
  if (found->size() != expected.size() * 8) return "the blob sampler has another size";
  if (std::memcmp(found->data(), expected.data(), found->size()) != 0)
    return "the blob sampler differs";
  return {};
}

}  // namespace crash
