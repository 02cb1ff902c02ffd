// Goal:   copies that lie on a GPU are not hashed by the host, which cannot read them; those beside
//         them are.
// Method: one rank of two whose tensors lie on the host and on the stand-in's GPU, whose addresses
//         the host cannot touch.
#include <catch2/catch.hpp>
#include <ckpt/options.hpp>
#include <vector>

#include "base/units.hpp"
#include "client/device_table.hpp"
#include "client/held_copies.hpp"
#include "client/tensor_registry.hpp"
#include "support/cuda_stand_in/stand_in.hpp"

namespace ckpt::test {

TEST_CASE("held copies: those on a GPU are not hashed", "[unit][capture]") {
  constexpr std::uint64_t elements = 5 * MiB;
  StandInTrainer trainer("");
  Options options;
  options.gpu_gap = GpuGap::memset;
  client::DeviceTable devices(options);
  client::TensorRegistry registry(&devices);
  std::vector<std::byte> on_host(elements);
  TensorRef tensor;
  tensor.dtype = DType::u8;
  tensor.shape = {elements};
  tensor.piece = Piece{{elements}, {0}, {}, {}, 0, 2};
  tensor.data = on_host.data();
  REQUIRE(registry.add("on the host", tensor));
  tensor.data = trainer.allocate(elements);
  tensor.location = Location::cuda;
  REQUIRE(registry.add("on the GPU", tensor));
  const auto held = registry.held_copies();
  REQUIRE(held.size() == 1);
  REQUIRE(held.front().name == "on the host");
  client::HeldCopies copies(held);
  const auto sources = copies.sources();
  REQUIRE(sources.size() == 1);
  REQUIRE(sources.front().bytes.data() == on_host.data());
  REQUIRE(copies.choose(Step{1}, client::Compared::all).size() == 1);
}

}  // namespace ckpt::test
