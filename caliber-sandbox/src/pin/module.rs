//! Which file of a source a dotted module path names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use caliber_core::text::shown;
use caliber_core::{Error, Result};
use rustix::fs::{AtFlags, FileType};

use super::tree::open_own;

/// The longest module path, in bytes.
const MODULE_PATH_BYTES: usize = 512;

/// Where a module lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFile {
    /// The index of the source root.
    pub root: usize,
    /// Its path in the root, such as `package/module.py`.
    pub path: PathBuf,
}

/// The parts of a module path.
///
/// # Errors
///
/// `Invalid` when it is none.
pub(super) fn parts(module_path: &str) -> Result<Vec<&str>> {
    let is_identifier = |part: &&str| {
        part.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && part
                .chars()
                .all(|character| character.is_alphanumeric() || character == '_')
    };
    let parts: Vec<_> = module_path.split('.').collect();
    if module_path.len() > MODULE_PATH_BYTES || !parts.iter().all(is_identifier) {
        return Err(Error::invalid(
            "module_path",
            format!(
                "{} is no dotted path of a module of at most {MODULE_PATH_BYTES} bytes, such as `package.module`",
                shown(module_path)
            ),
        ));
    }
    Ok(parts)
}

/// Finds the file that Python's path finder would find: root by root; in a root a package before a module; a folder
/// without `__init__.py` (part of a namespace package) only if no root has either.
///
/// `roots` are the folders of a finished copy.
pub(super) fn find(roots: &[OwnedFd], module_path: &str) -> Result<Option<ModuleFile>> {
    let parts = parts(module_path)?;
    let mut places = Vec::new();
    for (index, root) in roots.iter().enumerate() {
        let Ok(root) = root.try_clone() else {
            continue;
        };
        places.push(Place {
            root: index,
            folder: root,
            path: PathBuf::new(),
        });
    }
    let last = parts.len() - 1;
    for (index, part) in parts.into_iter().enumerate() {
        match step(places, part) {
            Step::Package(place) if index < last => places = vec![place],
            Step::Package(place) => {
                return Ok(Some(ModuleFile {
                    root: place.root,
                    path: place.path.join("__init__.py"),
                }));
            }
            Step::Module(file) if index == last => return Ok(Some(file)),
            Step::Namespace(next) if index < last => places = next,
            // A module has nothing below it, and a namespace package no code.
            Step::Module(_) | Step::Namespace(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// A folder to look in.
struct Place {
    root: usize,
    folder: OwnedFd,
    path: PathBuf,
}

enum Step {
    Package(Place),
    Module(ModuleFile),
    Namespace(Vec<Place>),
}

fn step(places: Vec<Place>, part: &str) -> Step {
    let mut portions = Vec::new();
    for place in places {
        if let Ok(inner) = std::ffi::CString::new(part)
            && let Ok(folder) = open_own(place.folder.as_fd(), &inner)
        {
            let inner = Place {
                root: place.root,
                path: place.path.join(part),
                folder,
            };
            if is_file(inner.folder.as_fd(), "__init__.py") {
                return Step::Package(inner);
            }
            portions.push(inner);
        }
        if let Some(name) = module_name(place.folder.as_fd(), part) {
            return Step::Module(ModuleFile {
                root: place.root,
                path: place.path.join(name),
            });
        }
    }
    Step::Namespace(portions)
}

/// `part.py`, or the file of an extension module; the finder tries extension modules first.
fn module_name(folder: BorrowedFd<'_>, part: &str) -> Option<String> {
    let prefix = format!("{part}.");
    let extension = rustix::fs::Dir::read_from(folder).ok().and_then(|entries| {
        entries
            .filter_map(|entry| String::from_utf8(entry.ok()?.file_name().to_bytes().to_vec()).ok())
            .filter(|name| is_extension_module(name, &prefix) && is_file(folder, name))
            .min()
    });
    let plain = format!("{part}.py");
    extension.or_else(|| is_file(folder, &plain).then_some(plain))
}

/// `name.so`, `name.abi3.so`, `name.cpython-….so`.
fn is_extension_module(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| {
        rest == "so"
            || rest
                .strip_suffix(".so")
                .is_some_and(|tag| tag == "abi3" || tag.starts_with("cpython-"))
    })
}

fn is_file(folder: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn finds_what_python_finds() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for path in [
            "a/plain.py",
            "a/both.py",
            "a/both/__init__.py",
            "a/space/one.py",
            "a/fast.cpython-311-x86_64-linux-gnu.so",
            "a/fast.py",
            "b/space/two.py",
            "b/plain.py",
            "b/package/__init__.py",
            "b/package/deep/inner.py",
        ] {
            write(path);
        }
        let open = |name: &str| OwnedFd::from(fs::File::open(folder.path().join(name)).unwrap());
        let roots = [open("a"), open("b")];
        let found = |module: &str| {
            find(&roots, module)
                .unwrap()
                .map(|file| (file.root, file.path.to_string_lossy().into_owned()))
        };
        let is = |root, path: &str| Some((root, path.to_owned()));
        assert_eq!(found("plain"), is(0, "plain.py"));
        assert_eq!(found("both"), is(0, "both/__init__.py"));
        assert_eq!(found("space.one"), is(0, "space/one.py"));
        assert_eq!(found("space.two"), is(1, "space/two.py"));
        assert_eq!(found("fast"), is(0, "fast.cpython-311-x86_64-linux-gnu.so"));
        assert_eq!(found("package.deep.inner"), is(1, "package/deep/inner.py"));
        assert_eq!(found("space"), None);
        assert_eq!(found("plain.inner"), None);
        assert_eq!(found("missing"), None);
    }

    #[test]
    fn refuses_what_is_no_module_path() {
        for text in ["", ".", "a..b", "a/b", "..a", "1a", "a b", "a.b-c", "a\0"] {
            assert!(parts(text).is_err(), "{text:?}");
        }
        assert!(parts(&"a".repeat(MODULE_PATH_BYTES + 1)).is_err());
        assert_eq!(parts("größe._x.y1").unwrap().len(), 3);
    }
}
