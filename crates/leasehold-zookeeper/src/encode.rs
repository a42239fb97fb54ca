//! The parts of requests about one node.

use crate::address;
use crate::create::CreateOptions;
use crate::error::Result;
use crate::jute::Writer;
use crate::wire;

/// A request with a path. `watch`: whether to watch the path; `None` if this kind of request has no
/// such field.
pub(crate) fn path_request(op: i32, path: &str, watch: Option<bool>) -> Result<Writer> {
    address::check_path(path)?;
    let mut writer = wire::request(op);
    writer.text(path);
    watch.into_iter().for_each(|watch| writer.flag(watch));
    Ok(writer)
}

pub(crate) fn write_create(writer: &mut Writer, path: &str, data: &[u8], options: &CreateOptions<'_>) -> Result<()> {
    if options.mode.is_sequential() { address::check_sequential_path(path) } else { address::check_path(path) }?;
    writer.text(path);
    writer.buffer(data);
    options.acls.write(writer);
    writer.int(options.mode.flags());
    Ok(())
}

/// `version`: the version that the node must have; `None` for any.
pub(crate) fn write_delete(writer: &mut Writer, path: &str, version: Option<i32>) -> Result<()> {
    address::check_path(path)?;
    writer.text(path);
    writer.int(version.unwrap_or(-1));
    Ok(())
}

/// `version`: the version that the data must have; `None` for any.
pub(crate) fn write_set_data(writer: &mut Writer, path: &str, data: &[u8], version: Option<i32>) -> Result<()> {
    address::check_path(path)?;
    writer.text(path);
    writer.buffer(data);
    writer.int(version.unwrap_or(-1));
    Ok(())
}

/// A request of the kind `op`, whose body `write` appends.
pub(crate) fn build_request(op: i32, write: impl FnOnce(&mut Writer) -> Result<()>) -> Result<Writer> {
    let mut writer = wire::request(op);
    write(&mut writer)?;
    Ok(writer)
}
