#include "os/local_stream.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/checksum.hpp"

namespace ckpt::os {

namespace {

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie");

struct HeaderImage {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t kind;
  std::uint32_t body_bytes;
  std::uint32_t body_crc;
};
static_assert(sizeof(HeaderImage) == local_header_bytes);

// A body is allocated as it arrives, so that a false length costs nothing.
constexpr std::size_t body_step_bytes = 1 * MiB;

// Room for the descriptors of one message, as the kernel lays them out.
struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(local_descriptors_max * sizeof(int))> bytes;
};

Unexpected peer_gone(std::string_view doing) {
  return fail(Errc::unavailable, fmt::format("{}: the other side is gone", doing),
              std::make_error_code(std::errc::broken_pipe));
}

Unexpected stream_failure(std::string_view doing, int error) {
  if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) return peer_gone(doing);
  const std::error_code cause(error, std::generic_category());
  // Too many descriptors are in flight to processes that do not read.
  if (error == ETOOMANYREFS) return fail(Errc::exhausted, std::string(doing), cause);
  return fail_system(std::string(doing), cause);
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

// Takes ownership of every descriptor that came, before anything is checked.
void take_descriptors(const msghdr& header, std::vector<Fd>& descriptors) {
  auto* fields = const_cast<msghdr*>(&header);
  for (cmsghdr* part = CMSG_FIRSTHDR(fields); part != nullptr; part = CMSG_NXTHDR(fields, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(number);
    }
  }
}

// Returns the bytes read now; 0: none there yet.
Result<std::size_t> read_header_part(int socket, std::span<std::byte> rest,
                                     std::vector<Fd>& descriptors) {
  ControlBuffer control;
  iovec part{rest.data(), rest.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes.data();
  header.msg_controllen = control.bytes.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (would_block(errno)) return std::size_t{0};
    return stream_failure("receive a local message", errno);
  }
  take_descriptors(header, descriptors);
  if (got == 0) return peer_gone("receive a local message");
  // Truncated because our own descriptor table is full: the message is useless without them.
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return fail(Errc::exhausted, "receive the descriptors of a local message");
  }
  return static_cast<std::size_t>(got);
}

// Offers no room for descriptors: the kernel closes any that a sender attaches here.
Result<std::size_t> read_body_part(int socket, std::span<std::byte> rest) {
  ssize_t got = 0;
  do {
    got = ::recv(socket, rest.data(), rest.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (would_block(errno)) return std::size_t{0};
    return stream_failure("receive the body of a local message", errno);
  }
  if (got == 0) return peer_gone("receive the body of a local message");
  return static_cast<std::size_t>(got);
}

Task<LocalHeader> read_header(std::shared_ptr<Readiness> socket, Time deadline,
                              std::shared_ptr<bool> is_between_messages,
                              std::vector<Fd>& descriptors) {
  LocalHeaderBytes bytes{};
  std::size_t done = 0;
  while (done < bytes.size()) {
    CKPT_CO_TRY(const std::size_t got,
                read_header_part(socket->number(), std::span(bytes).subspan(done), descriptors));
    if (got == 0) {
      CKPT_CO_CHECK(co_await Readiness::wait(socket, Readiness::readable, deadline));
      continue;
    }
    *is_between_messages = false;
    done += got;
  }
  co_return decode_local_header(bytes);
}

Task<void> read_body(std::shared_ptr<Readiness> socket, LocalHeader header, Time deadline,
                     std::vector<std::byte>& body) {
  std::size_t done = 0;
  while (done < header.body_bytes) {
    if (done == body.size()) {
      body.resize(std::min<std::size_t>(header.body_bytes, done + body_step_bytes));
    }
    CKPT_CO_TRY(const std::size_t got,
                read_body_part(socket->number(), std::span(body).subspan(done)));
    if (got == 0) {
      CKPT_CO_CHECK(co_await Readiness::wait(socket, Readiness::readable, deadline));
      continue;
    }
    done += got;
  }
  if (crc32(body) != header.body_crc) {
    co_return fail(Errc::corruption, "receive a local message: its body has another checksum");
  }
  co_return Status();
}

// Writes the header and the body as one range, of which `done` bytes are sent. Returns 0 while
// there is no room.
Result<std::size_t> write_part(int socket, const LocalHeaderBytes& header,
                               const LocalMessage& message, std::size_t done) {
  std::array<iovec, 2> parts{};
  const std::size_t header_done = std::min(done, header.size());
  const std::size_t body_done = done - header_done;
  parts[0] = {const_cast<std::byte*>(header.data()) + header_done, header.size() - header_done};
  parts[1] = {const_cast<std::byte*>(message.body.data()) + body_done,
              message.body.size() - body_done};
  msghdr out{};
  out.msg_iov = parts.data();
  out.msg_iovlen = parts.size();
  ControlBuffer control{};
  if (done == 0 && !message.descriptors.empty()) {
    out.msg_control = control.bytes.data();
    out.msg_controllen = CMSG_SPACE(message.descriptors.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&out);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(message.descriptors.size() * sizeof(int));
    for (std::size_t i = 0; i < message.descriptors.size(); ++i) {
      const int number = message.descriptors[i].number();
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &number, sizeof(int));
    }
  }
  ssize_t put = 0;
  do {
    put = ::sendmsg(socket, &out, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (put < 0 && errno == EINTR);
  if (put >= 0) return static_cast<std::size_t>(put);
  if (would_block(errno)) return std::size_t{0};
  return stream_failure("send a local message", errno);
}

}  // namespace

LocalHeaderBytes encode_local_header(const LocalHeader& header) {
  const HeaderImage image{local_magic, local_version, header.kind, header.body_bytes,
                          header.body_crc};
  return std::bit_cast<LocalHeaderBytes>(image);
}

Result<LocalHeader> decode_local_header(const LocalHeaderBytes& bytes) {
  const auto image = std::bit_cast<HeaderImage>(bytes);
  if (image.magic != local_magic) {
    return fail(Errc::corruption, "receive a local message: its header is not one of ours");
  }
  if (image.version != local_version) {
    return fail(Errc::version_mismatch,
                fmt::format("receive a local message: it has version {}, we speak {}",
                            image.version, local_version));
  }
  if (image.body_bytes > local_body_bytes_max) {
    return fail(Errc::exhausted,
                fmt::format("receive a local message of {} bytes: at most {} are allowed",
                            image.body_bytes, local_body_bytes_max));
  }
  return LocalHeader{image.kind, image.body_bytes, image.body_crc};
}

Task<LocalMessage> read_local_message(std::shared_ptr<Readiness> socket, Time deadline,
                                      std::shared_ptr<bool> is_between_messages) {
  *is_between_messages = true;
  LocalMessage message;
  CKPT_CO_TRY(const LocalHeader header,
              co_await read_header(socket, deadline, is_between_messages, message.descriptors));
  if (message.descriptors.size() > local_descriptors_max) {
    co_return fail(Errc::exhausted, "receive a local message: it has too many descriptors");
  }
  message.kind = header.kind;
  CKPT_CO_CHECK(co_await read_body(socket, header, deadline, message.body));
  *is_between_messages = true;
  co_return std::move(message);
}

Task<void> write_local_message(std::shared_ptr<Readiness> socket, LocalMessage message,
                               Time deadline, std::shared_ptr<bool> is_between_messages) {
  *is_between_messages = true;
  LocalHeader header;
  header.kind = message.kind;
  header.body_bytes = static_cast<std::uint32_t>(message.body.size());
  header.body_crc = crc32(message.body);
  const LocalHeaderBytes header_bytes = encode_local_header(header);
  const std::size_t total = header_bytes.size() + message.body.size();
  std::size_t done = 0;
  while (done < total) {
    CKPT_CO_TRY(const std::size_t put, write_part(socket->number(), header_bytes, message, done));
    if (put == 0) {
      CKPT_CO_CHECK(co_await Readiness::wait(socket, Readiness::writable, deadline));
      continue;
    }
    *is_between_messages = false;
    done += put;
  }
  *is_between_messages = true;
  co_return Status();
}

}  // namespace ckpt::os
