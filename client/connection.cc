#include "client/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <utility>

namespace latchd::client {
namespace {

std::shared_ptr<grpc::ChannelCredentials> Credentials(const ClientOptions& options) {
  if (!options.tls.has_value()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = options.tls->root_certs;
  ssl.pem_cert_chain = options.tls->client_cert;
  ssl.pem_private_key = options.tls->client_key;
  return grpc::SslCredentials(ssl);
}

grpc::ChannelArguments Arguments(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetUserAgentPrefix("latchd-cpp/" LATCHD_VERSION);
  // The policy in retry.h is the only one: neither gRPC's own nor one that a resolver hands out may
  // send a call twice.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  if (options.tls.has_value() && !options.tls->server_name_override.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name_override);
  }
  return arguments;
}

// Waits until the channel is ready. True: it is.
bool WaitUntilReady(grpc::Channel& channel, absl::Time deadline, bool wait_for_server) {
  grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_SHUTDOWN) return false;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !wait_for_server) return false;
    if (!channel.WaitForStateChange(state, absl::ToChronoTime(deadline))) return false;
    state = channel.GetState(/*try_to_connect=*/true);
  }
  return true;
}

}  // namespace

Connection::Connection(ClientOptions options, std::unique_ptr<v1::DecodeService::Stub> stub)
    : options_(std::move(options)), stub_(std::move(stub)) {}

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const std::string& address,
                                                             const ClientOptions& options) {
  if (address.empty()) {
    return absl::InvalidArgumentError("address: expected HOST:PORT, got an empty string");
  }
  auto channel = grpc::CreateCustomChannel(address, Credentials(options), Arguments(options));
  if (!WaitUntilReady(*channel, absl::Now() + options.connect_timeout, options.wait_for_server)) {
    return absl::UnavailableError("cannot connect to " + address + ": is latchd running there?");
  }
  auto stub = v1::DecodeService::NewStub(channel);
  return std::shared_ptr<Connection>(new Connection(options, std::move(stub)));
}

void Connection::SetTimeout(grpc::ClientContext& context, absl::Time deadline) {
  if (deadline < absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
}

}  // namespace latchd::client
