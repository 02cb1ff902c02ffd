#include "replicate/peer_service.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"

namespace ckpt::replicate {

namespace {

using wire::FrameKind;

class Service {
 public:
  Service(std::shared_ptr<wire::Connection> connection, Clock& clock, wire::PeerIdentity peer,
          ReplicaSink& sink, ShardProvider& provider, ServiceOptions options)
      : connection_(std::move(connection)),
        clock_(clock),
        peer_(std::move(peer)),
        sink_(sink),
        provider_(provider),
        options_(std::move(options)) {}

  Task<void> serve_all();

 private:
  TransferOptions transfer_options() const;
  Task<bool> serve_next();  // Returns false if the peer left between two requests.
  Task<void> answer(wire::Message request);

  std::shared_ptr<wire::Connection> connection_;
  Clock& clock_;
  wire::PeerIdentity peer_;
  ReplicaSink& sink_;
  ShardProvider& provider_;
  ServiceOptions options_;
};

TransferOptions Service::transfer_options() const {
  TransferOptions transfer;
  transfer.timeline = options_.timeline ? options_.timeline() : 0;
  transfer.stall = options_.stall;
  transfer.deadline = clock_.after(options_.transfer_max);
  transfer.compute = options_.compute;
  return transfer;
}

Task<void> Service::answer(wire::Message request) {
  TransferOptions transfer = transfer_options();
  switch (request.kind) {
    case FrameKind::offer:
    case FrameKind::offer_changes: {
      auto received = co_await receive_shard(*connection_, clock_, peer_, std::move(request), sink_,
                                             std::move(transfer));
      co_return received;
    }
    case FrameKind::fetch_record: {
      auto served = co_await serve_record(*connection_, clock_, peer_.job, std::move(request),
                                          provider_, std::move(transfer));
      co_return served;
    }
    case FrameKind::fetch: {
      auto served = co_await serve_fetch(*connection_, clock_, peer_.job, std::move(request),
                                         provider_, std::move(transfer));
      co_return served;
    }
    default:
      co_return fail(Errc::invalid_argument,
                     fmt::format("serve node {}: {} is no request of a data connection", peer_.node,
                                 to_string(request.kind)));
  }
}

Task<bool> Service::serve_next() {
  const Time idle_until = clock_.after(options_.idle_max);
  auto next = co_await wire::read_header(*connection_, idle_until);
  if (!next && next.error().code() == Errc::unavailable) co_return false;
  CKPT_CO_TRY(const wire::FrameHeader header, std::move(next));
  if (header.kind == FrameKind::goodbye) co_return false;
  // Refused before its body is read: DATA without a grant is never stored.
  if (header.kind == FrameKind::data)
    co_return fail(Errc::corruption,
                   fmt::format("serve node {}: data without a grant", peer_.node));
  const Time stalled = clock_.after(options_.stall);
  CKPT_CO_TRY(auto body, co_await wire::read_body(*connection_, header, stalled));
  wire::Message request;
  request.kind = header.kind;
  request.ticket = header.ticket;
  request.offset = header.offset;
  request.timeline = header.timeline;
  request.body = std::move(body);
  CKPT_CO_CHECK(co_await answer(std::move(request)));
  co_return true;
}

Task<void> Service::serve_all() {
  for (;;) {
    CKPT_CO_TRY(const bool goes_on, co_await serve_next());
    if (!goes_on) co_return Status();
  }
}

}  // namespace

Task<void> serve_peer(std::shared_ptr<wire::Connection> connection, Clock& clock,
                      wire::PeerIdentity peer, ReplicaSink& sink, ShardProvider& provider,
                      ServiceOptions options) {
  Service service(connection, clock, std::move(peer), sink, provider, std::move(options));
  auto served = co_await service.serve_all();
  connection->close();
  co_return served;
}

}  // namespace ckpt::replicate
