// The one source of the target that makes the precompiled header: CMake wants a user of it there.
