// BucketPublish: the commit in a bucket, where nothing can be renamed.
//
//   manifest read, if there is one -> attempt looked at -> manifest put, if nothing has changed
//     -> attempt looked at again: DURABLE
//
// The files stay where they were uploaded, and the manifest names their folder. The conditional put
// lets one of several publishers win. A discarder (bucket_removal.hpp) marks the attempt before it
// looks for a manifest that names it; a publisher puts the manifest before it looks for the mark.
// So at least one of them sees the other, and nothing that was reported is removed.
#pragma once

#include <memory>
#include <string>

#include "format/manifest.hpp"
#include "storage/publish_order.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// `manifest` is complete and names the folders of the order's attempt. Errors: invalid_argument
// (another daemon has published this step, or something that is not ours is in the way),
// corruption (the attempt is not whole, or was discarded), io: maybe it is published.
Task<PublishOutcome> publish_in_bucket(Site site, PublishOrder order,
                                       std::shared_ptr<const format::Manifest> manifest);

}  // namespace ckpt::storage
