//! Debian's Chromium without a window, driven by WebDriver as a person would: by clicks and keys.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, Request, eventually, free_port, request};

/// A browser takes its time to start while other tests run.
const PATIENCE: Duration = Duration::from_secs(180);

/// The browsers of all tests, which take turns: each is several processes, and starts slowly.
static BROWSERS: Mutex<Browsers> = Mutex::new(Browsers {
    idle: Vec::new(),
    all: 0,
});

/// A browser is idle again, or ended.
static GIVEN_BACK: Condvar = Condvar::new();

const MAX_BROWSERS: usize = 3;

struct Browsers {
    idle: Vec<Driver>,
    all: usize,
}

/// Runs `chromedriver`, and kills it when standard input is closed. Chromium ends with its driver,
/// which holds the other end of a pipe. Standard output is the driver's alone: it ends with it.
const KEEPER: &str = "exec 3<&0; chromedriver --port=$0 </dev/null & driver=$!; exec >/dev/null; \
                      cat <&3; kill -s KILL $driver";

/// The key of an element in what WebDriver answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A process that drives a browser.
struct Driver {
    address: SocketAddr,
    session: String,
    /// The shell that runs the driver: it ends with its standard input.
    _keeper: Child,
}

/// A browser with one tab, which no other test has used.
pub(crate) struct Browser {
    driver: Option<Driver>,
}

/// Keys that are not characters, as WebDriver writes them.
pub(crate) mod keys {
    pub(crate) const ENTER: &str = "\u{e007}";
    pub(crate) const ESCAPE: &str = "\u{e00c}";
    pub(crate) const TAB: &str = "\u{e004}";
}

impl Driver {
    /// A driver listens on IPv4 and IPv6, and ends at once where its port is taken on one of them.
    fn start() -> Self {
        (0..3)
            .find_map(|_| Self::try_start())
            .expect("tests need the packages `chromium` and `chromium-driver`")
    }

    /// None if the driver ends without a port, or says none for too long.
    fn try_start() -> Option<Self> {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, &free_port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let lines = BufReader::new(keeper.stdout.take().unwrap()).lines();
        let port = |line: String| {
            eprintln!("chromedriver: {line}");
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        };
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(lines.map_while(Result::ok).find_map(port)));
        let Ok(Some(port)): Result<Option<u16>, _> = told.recv_timeout(PATIENCE) else {
            let _ = keeper.wait();
            return None;
        };
        Some(Self {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            session: String::new(),
            _keeper: keeper,
        })
    }
}

impl Browser {
    pub(crate) fn start() -> Self {
        let mut browsers = BROWSERS.lock().unwrap();
        while browsers.idle.is_empty() && browsers.all == MAX_BROWSERS {
            browsers = GIVEN_BACK.wait(browsers).unwrap();
        }
        let idle = browsers.idle.pop();
        browsers.all += usize::from(idle.is_none());
        drop(browsers);
        let is_new = idle.is_none();
        let mut browser = Self { driver: idle };
        if is_new {
            browser.driver = Some(Driver::start());
            let session = browser.new_session();
            browser.driver.as_mut().unwrap().session = session;
        } else {
            browser.open_another_tab();
        }
        browser
    }

    fn driver(&self) -> &Driver {
        self.driver.as_ref().expect("a browser")
    }

    fn new_session(&self) -> String {
        // Without a sandbox, as tests may run as root; it opens the tests' own pages only.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-pipe",
            "--window-size=1280,1000",
        ];
        let capabilities = json!({"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }});
        let session = self.command("POST", "/session", &json!({"capabilities": capabilities}));
        format!("/session/{}", session["sessionId"].as_str().unwrap())
    }

    /// A tab that knows nothing of the one before it, which is closed.
    fn open_another_tab(&self) {
        let tab = self.act("window/new", &json!({"type": "tab"}));
        self.command(
            "DELETE",
            &format!("{}/window", self.driver().session),
            &json!({}),
        );
        self.act("window", &json!({"handle": tab["handle"]}));
        self.developer("Network.clearBrowserCookies", &json!({}));
        self.developer("Network.clearBrowserCache", &json!({}));
        self.console();
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, value) = self.try_command(method, path, body);
        assert_eq!(status, 200, "{method} {path}: {value}");
        value
    }

    fn try_command(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let stream = TcpStream::connect(self.driver().address).expect("chromedriver");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let command = match method {
            "POST" => super::post(path, &body.to_string()),
            _ => request(method, path),
        };
        let command: Request = command.with("host", &self.driver().address.to_string());
        let response = Client::over(stream).send(&command);
        (response.status, response.json()["value"].clone())
    }

    fn act(&self, path: &str, body: &Value) -> Value {
        self.command("POST", &format!("{}/{path}", self.driver().session), body)
    }

    /// Opens a page, and waits until it is loaded.
    pub(crate) fn open(&self, url: &str) {
        self.act("url", &json!({"url": url}));
    }

    /// What a function body in JavaScript returns; it may wait for promises.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.act("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true.
    pub(crate) fn wait(&self, expression: &str) {
        let script = format!("try {{ return Boolean({expression}) }} catch {{ return false }}");
        eventually(expression, || (self.run(&script) == true).then_some(()));
    }

    /// The text that a person sees in an element; empty if there is none.
    pub(crate) fn text(&self, selector: &str) -> String {
        let selector = Value::from(selector);
        let script = format!(
            "const element = document.querySelector({selector});
            return element?.checkVisibility() ? element.innerText : ''"
        );
        self.run(&script).as_str().unwrap().to_owned()
    }

    /// Waits until a person sees this text in an element.
    pub(crate) fn sees(&self, selector: &str, text: &str) {
        let mut shown = None;
        eventually(&format!("{text:?} in {selector}"), || {
            let now = self.text(selector);
            let is_seen = now.contains(text);
            // For who reads why a test failed.
            if shown
                .replace(now.clone())
                .is_none_or(|before| before != now)
            {
                eprintln!("{selector}: {now}");
            }
            is_seen.then_some(())
        });
    }

    /// Clicks on an element, as soon as it is there and nothing covers it.
    pub(crate) fn click(&self, selector: &str) {
        eventually(&format!("a click on {selector}"), || {
            self.try_click(selector)
        });
    }

    /// The same at once; none if the element is not there, or is covered.
    pub(crate) fn try_click(&self, selector: &str) -> Option<()> {
        let element = self.element(selector)?;
        // The driver would leave it under the header of the page.
        let selector = Value::from(selector);
        self.run(&format!(
            "document.querySelector({selector})?.scrollIntoView({{block: 'center'}})"
        ));
        let click = format!("{}/element/{element}/click", self.driver().session);
        let (status, _) = self.try_command("POST", &click, &json!({}));
        (status == 200).then_some(())
    }

    /// Types into an element, in place of what is there.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        eventually(&format!("a field {selector}"), || {
            let path = format!(
                "{}/element/{}",
                self.driver().session,
                self.element(selector)?
            );
            let (status, _) = self.try_command("POST", &format!("{path}/clear"), &json!({}));
            (status == 200).then(|| {
                self.command("POST", &format!("{path}/value"), &json!({"text": text}));
            })
        });
    }

    fn element(&self, selector: &str) -> Option<String> {
        let find = json!({"using": "css selector", "value": selector});
        let path = format!("{}/element", self.driver().session);
        let (status, element) = self.try_command("POST", &path, &find);
        (status == 200).then(|| element[ELEMENT].as_str().unwrap().to_owned())
    }

    /// Presses and releases keys, one after the other, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            let stroke = |kind| json!({"type": kind, "value": key.to_string()});
            [stroke("keyDown"), stroke("keyUp")]
        });
        let strokes: Vec<_> = strokes.collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes});
        self.act("actions", &json!({"actions": [keyboard]}));
    }

    /// What the console says since the last look: errors of scripts, refused contents, failed
    /// requests.
    pub(crate) fn console(&self) -> Vec<String> {
        let lines = self.act("se/log", &json!({"type": "browser"}));
        let lines = lines.as_array().unwrap().iter();
        lines.map(ToString::to_string).collect()
    }

    fn developer(&self, command: &str, parameters: &Value) -> Value {
        let command = json!({"cmd": command, "params": parameters});
        self.act("goog/cdp/execute", &command)
    }

    /// Shows pages as a screen of this size does.
    pub(crate) fn screen(&self, width: u32, height: u32) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.developer("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Shows pages as to somebody who prefers `dark` or `light`.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.developer("Emulation.setEmulatedMedia", &json!({"features": features}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let mut browsers = BROWSERS.lock().unwrap();
        match self.driver.take() {
            Some(driver) if !thread::panicking() => browsers.idle.push(driver),
            // A test that fails leaves its browser in whatever state.
            _ => browsers.all -= 1,
        }
        GIVEN_BACK.notify_one();
    }
}
