// Goal:   the example's training must be a function of its seed, also across a save and a restore:
//         without that, "bitwise equal to an uninterrupted run" would prove nothing.
// Method: train the model twice, whole and cut in the middle with its tensors and progress copied
//         out and into a new model, and compare digests; then two ranks that share the parameters,
//         each in a thread, against two that were stopped and resumed, and against one that goes on
//         with their pieces.
#include "examples/training/model.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "examples/training/exchange.hpp"

namespace {

using example::Exchange;
using example::ExchangeOptions;
using example::Model;
using example::ModelOptions;

using Saved = std::vector<std::vector<std::byte>>;

std::vector<std::span<std::byte>> state_of(Model& model) {
  std::vector<std::span<std::byte>> out;
  for (const example::NamedTensor& entry : model.tensors()) {
    std::size_t count = 1;
    for (const std::int64_t extent : entry.tensor.shape) count *= static_cast<std::size_t>(extent);
    out.emplace_back(static_cast<std::byte*>(entry.tensor.data), count * sizeof(float));
  }
  out.push_back(model.progress_bytes());
  return out;
}

Saved save(Model& model) {
  Saved out;
  for (const auto bytes : state_of(model)) out.emplace_back(bytes.begin(), bytes.end());
  return out;
}

void restore(Model& model, const Saved& saved) {
  const auto state = state_of(model);
  REQUIRE(state.size() == saved.size());
  for (std::size_t index = 0; index < state.size(); ++index) {
    REQUIRE(state[index].size() == saved[index].size());
    std::memcpy(state[index].data(), saved[index].data(), saved[index].size());
  }
}

ModelOptions small() {
  ModelOptions options;
  options.width = 16;
  options.hidden_layers = 3;
  return options;
}

void train(Model& model, Exchange& exchange, int steps) {
  for (int step = 0; step < steps; ++step) {
    if (!exchange.gather(model.weights(), model.share_ends())) return;
    model.compute_gradients();
    if (!exchange.sum(model.gradients())) return;
    model.update();
  }
  (void)exchange.gather(model.weights(), model.share_ends());
}

// Trains both ranks, from `saved` where it is not empty, and leaves what each would save there.
std::vector<std::uint64_t> train_pair(const std::string& address, int steps,
                                      std::vector<Saved>& saved) {
  std::vector<std::uint64_t> digests(2);
  std::vector<Saved> after(2);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ModelOptions options = small();
      options.rank = rank;
      options.world = 2;
      Model model(options);
      if (!saved.empty()) {
        const auto state = state_of(model);
        for (std::size_t index = 0; index < state.size(); ++index)
          std::memcpy(state[index].data(), saved[rank][index].data(), state[index].size());
      }
      ExchangeOptions exchange_options;
      exchange_options.address = address;
      exchange_options.rank = rank;
      exchange_options.world = 2;
      auto exchange = Exchange::open(exchange_options);
      if (!exchange) return;
      train(model, *exchange, steps);
      digests[rank] = model.digest();
      after[rank] = save(model);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  saved = std::move(after);
  return digests;
}

// Copies what a rank of `options` saved to where it lies in the tensors of a model of one rank.
void put_pieces(Model& whole, const ModelOptions& options, const Saved& saved) {
  Model part(options);
  restore(part, saved);
  std::map<std::string, float*> places;
  for (const example::NamedTensor& entry : whole.tensors())
    places[entry.name] = static_cast<float*>(entry.tensor.data);
  for (const example::NamedTensor& entry : part.tensors()) {
    const auto& piece = entry.tensor.piece;
    const std::uint64_t begin = piece ? piece->flat_begin.value() : 0;
    std::size_t count = 1;
    for (const std::int64_t extent : entry.tensor.shape) count *= static_cast<std::size_t>(extent);
    std::memcpy(places.at(entry.name) + begin, entry.tensor.data, count * sizeof(float));
  }
  std::memcpy(whole.progress_bytes().data(), part.progress_bytes().data(),
              whole.progress_bytes().size());
}

}  // namespace

TEST_CASE("model: training that was saved and resumed ends with the same bits",
          "[unit][examples]") {
  auto alone = Exchange::open({});
  REQUIRE(alone);
  Model whole(small());
  const float first_loss = whole.compute_gradients();
  whole.update();
  train(whole, *alone, 39);

  Model begun(small());
  train(begun, *alone, 17);
  const Saved saved = save(begun);
  Model resumed(small());
  REQUIRE(resumed.digest() != begun.digest());
  restore(resumed, saved);
  train(resumed, *alone, 23);

  REQUIRE(resumed.progress().step == 40);
  REQUIRE(resumed.digest() == whole.digest());
  REQUIRE(first_loss > 0.0f);
}

TEST_CASE("model: another generator state after a resume is noticed", "[unit][examples]") {
  auto alone = Exchange::open({});
  REQUIRE(alone);
  Model one(small());
  Model two(small());
  train(one, *alone, 5);
  train(two, *alone, 5);
  REQUIRE(one.digest() == two.digest());
  two.progress_bytes()[offsetof(example::Progress, random)] ^= std::byte{1};
  train(one, *alone, 1);
  train(two, *alone, 1);
  REQUIRE(one.digest() != two.digest());
}

TEST_CASE("model: it learns", "[unit][examples]") {
  auto alone = Exchange::open({});
  REQUIRE(alone);
  Model model(small());
  const auto mean_loss = [&model](int steps) {
    float sum = 0;
    for (int step = 0; step < steps; ++step) {
      sum += model.compute_gradients();
      model.update();
    }
    return sum / static_cast<float>(steps);
  };
  const float before = mean_loss(50);
  train(model, *alone, 1000);
  REQUIRE(mean_loss(50) < 0.8f * before);
}

TEST_CASE("model: two ranks that share the parameters resume to the same bits",
          "[unit][examples]") {
  const std::string address = "127.0.0.1:" + std::to_string(20000 + ::getpid() % 20000);
  std::vector<Saved> state;
  const auto whole = train_pair(address, 12, state);
  REQUIRE(whole[0] != 0);
  REQUIRE(whole[0] == whole[1]);

  state.clear();
  const auto half = train_pair(address, 5, state);
  REQUIRE(half[0] != whole[0]);
  const auto resumed = train_pair(address, 7, state);
  REQUIRE(resumed[0] == whole[0]);
  REQUIRE(resumed[1] == whole[0]);
}

TEST_CASE("model: one rank goes on with the pieces of two", "[unit][examples]") {
  const std::string address = "127.0.0.1:" + std::to_string(20000 + ::getpid() % 20000);
  std::vector<Saved> state;
  const auto digests = train_pair(address, 5, state);
  Model alone(small());
  Model other(small());
  ModelOptions options = small();
  options.world = 2;
  for (options.rank = 0; options.rank < 2; ++options.rank)
    put_pieces(alone, options, state.at(options.rank));
  REQUIRE(alone.digest() == digests[0]);
  REQUIRE(alone.progress().step == 5);

  train_pair(address, 7, state);
  auto exchange = Exchange::open({});
  REQUIRE(exchange);
  train(alone, *exchange, 7);
  for (options.rank = 0; options.rank < 2; ++options.rank)
    put_pieces(other, options, state.at(options.rank));
  REQUIRE(other.progress().position == alone.progress().position);
  // The gradients were added up in another order.
  float largest = 0;
  for (std::size_t index = 0; index < alone.weights().size(); ++index)
    largest = std::max(largest, std::abs(alone.weights()[index] - other.weights()[index]));
  REQUIRE(largest < 1e-5f);
}
