// Goal:   the numbers that a trainer gives come back exactly, or not at all.
// Method: odd numbers and names there and back; then every byte of a text is damaged.
#include "format/metrics.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "format/sealed_json.hpp"

namespace ckpt::format {

TEST_CASE("metrics: numbers and names come back as they were", "[unit][format]") {
  using Limits = std::numeric_limits<double>;
  const Metrics metrics{{"loss", 0.1},
                        {"\"quoted\"\n", -0.0},
                        {"größe", Limits::max()},
                        {"least", Limits::denorm_min()},
                        {"third", 1.0 / 3},
                        {"whole", 12345678}};
  const std::string text = render(metrics);
  const auto read = parse_metrics(text);
  REQUIRE((read ? "" : read.error().message()) == "");
  CHECK(*read == metrics);
  CHECK(std::signbit(read->at("\"quoted\"\n")));
  CHECK(parse_metrics(render(Metrics())).value().empty());
}

TEST_CASE("metrics: a damaged text is refused", "[unit][format]") {
  const std::string good = render(Metrics{{"loss", 0.5}});
  for (std::size_t index = 0; index < good.size(); ++index) {
    std::string bad = good;
    bad[index] = static_cast<char>(bad[index] ^ 1);
    CAPTURE(index);
    CHECK_FALSE(parse_metrics(bad));
  }
  CHECK_FALSE(parse_metrics(""));
}

TEST_CASE("metrics: a text that no writer of ours makes is refused", "[unit][format]") {
  const auto sealed = [](const std::string& members) {
    return seal_json(begin_sealed_json("libckpt-metrics") + "\"metrics\":{" + members + "},\n");
  };
  CHECK(parse_metrics(sealed("\"a\":1,\"b\":2.5e-07")));
  for (const auto* bad : {"\"a\":nan", "\"a\":inf", "\"a\":1e999", "\"a\":01", "\"a\":1.0",
                          "\"a\":+1", "\"a\":\"1\"", "\"a\":", "\"a\":1,\"a\":1", "\"\":1"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_metrics(sealed(bad)));
  }
  std::string many;
  for (std::size_t index = 0; index <= metrics_max; ++index)
    many += (index > 0 ? ",\"m" : "\"m") + std::to_string(index) + "\":1";
  CHECK_FALSE(parse_metrics(sealed(many)));
  CHECK_FALSE(check_metric_name(""));
  CHECK_FALSE(check_metric_name(std::string(metric_name_bytes_max + 1, 'a')));
  CHECK_FALSE(check_metric_name("\xff"));
  CHECK(check_metric_name(std::string(metric_name_bytes_max, 'a')));
}

}  // namespace ckpt::format
