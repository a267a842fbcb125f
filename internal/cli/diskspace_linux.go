package cli

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// diskOf returns the space that a directory has for this user, and the kind of
// its file system.
func diskOf(dir string) (free uint64, kind string, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, "", err
	}
	kinds := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", 0x2fc12fc1: "zfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
		unix.NFS_SUPER_MAGIC: "nfs", unix.SMB_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs", unix.SMB2_SUPER_MAGIC: "cifs", unix.FUSE_SUPER_MAGIC: "fuse", unix.V9FS_MAGIC: "9p",
	}
	kind, ok := kinds[int64(s.Type)]
	if !ok {
		kind = fmt.Sprintf("file system 0x%x", s.Type)
	}
	return s.Bavail * uint64(s.Bsize), kind, nil
}
