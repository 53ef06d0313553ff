/* SPDX-License-Identifier: Apache-2.0 */
/* backend_cuda in a build without CUDA: skips by name, as on a machine without a device. */
#include "backend.h"

static const char *not_built(void)
{
    return "this build has no CUDA";
}

const backend backend_cuda = {.name = "cuda", .unavailable = not_built};
