"""Every message between Pagewire's processes: declarations only, one file per channel.

Each channel file declares tagged `msgspec.Struct`s and one union of what its receiver accepts. Values that exist once per slot or per token
are **columns**: packed little-endian bytes (`i32`, `i64`, `f32`, `u8`) that the receiver views with numpy, see `transport.columns`.
"""
