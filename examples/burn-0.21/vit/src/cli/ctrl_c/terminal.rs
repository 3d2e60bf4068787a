//! The terminal that Burn's UI takes.

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

/// The terminal as it was before the UI took it.
pub(super) struct Terminal {
    device: OwnedFd,
    before: Termios,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Self> {
        // As the UI does.
        let device = match io::stdin().is_terminal() {
            true => io::stdin().as_fd().try_clone_to_owned()?,
            false => File::open("/dev/tty")?.into(),
        };
        let before = tcgetattr(&device)?;
        Ok(Self { device, before })
    }

    /// The UI reads keys as they are, and does nothing at Ctrl-C, which is then no signal: makes it
    /// one again as soon as the UI has the terminal.
    pub(super) fn keep_ctrl_c(&self) -> io::Result<()> {
        const UNTIL_THE_NEXT_LOOK: Duration = Duration::from_millis(20);

        let device = self.device.try_clone()?;
        let keep = move || -> io::Result<()> {
            loop {
                let mut modes = tcgetattr(&device)?;
                if !modes.local_modes.contains(LocalModes::ISIG) {
                    modes.local_modes.insert(LocalModes::ISIG);
                    // Stopped with Ctrl-Z, it would leave the terminal to the shell as it is.
                    modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
                    tcsetattr(&device, OptionalActions::Now, &modes)?;
                    return Ok(());
                }
                thread::sleep(UNTIL_THE_NEXT_LOOK);
            }
        };
        // Without the thread, or if the terminal goes away, the keys of the UI are left.
        thread::Builder::new()
            .name("ctrl-c".into())
            .spawn(keep)
            .map(drop)
    }

    pub(super) fn restore(&self) {
        const LEAVE_ALTERNATE_SCREEN_AND_SHOW_CURSOR: &[u8] = b"\x1b[?1049l\x1b[?25h";

        // The program ends, whether this succeeds or not.
        let _ = tcsetattr(&self.device, OptionalActions::Now, &self.before);
        let _ = io::stdout().write_all(LEAVE_ALTERNATE_SCREEN_AND_SHOW_CURSOR);
        let _ = io::stdout().flush();
    }
}
