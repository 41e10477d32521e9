//! Speaks HTTP and stdio with clients.
