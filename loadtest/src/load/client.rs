//! One chat request over a pool of kept connections, timed from when it was meant to be sent.
//!
//! Must not know: conversations. Every failure has a kind, a short name under which it is counted.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::stats::Sample;
use super::{Options, answer};

/// Below the time after which an engine closes an idle connection (uvicorn: 5 s).
const IDLE_LIMIT: Duration = Duration::from_secs(4);

/// Where requests go, and what each carries.
#[derive(Debug)]
pub(crate) struct Target {
    host: String,
    port: u16,
    path: String,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl Target {
    /// Errors: not an http URL, or a field that is none.
    pub(crate) fn parse(url: &str, api_key: Option<&str>, headers: &[String]) -> Result<Self, String> {
        let wrong = || format!("--url {url}: not of the form http://HOST:PORT[/BASE]");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let authority = uri.authority().ok_or_else(wrong)?.as_str();
        let mut fields = vec![
            (HOST, HeaderValue::from_str(authority).map_err(|_| wrong())?),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        ];
        if let Some(key) = api_key {
            let value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| "--api-key: not a field value")?;
            fields.push((AUTHORIZATION, value));
        }
        for header in headers {
            let parsed = header
                .split_once(':')
                .and_then(|(name, value)| Some((name.trim().parse().ok()?, HeaderValue::from_str(value.trim()).ok()?)));
            fields.push(parsed.ok_or_else(|| format!("--header {header:?}: not of the form 'Name: value'"))?);
        }
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(80),
            path: format!("{}/v1/chat/completions", uri.path().trim_end_matches('/')),
            fields,
        })
    }
}

type Sender = SendRequest<Full<Bytes>>;

pub(crate) struct Client {
    target: Target,
    permits: Semaphore,
    idle: RefCell<Vec<(Sender, Instant)>>,
    timeout: Duration,
    stream: bool,
    model: String,
    max_tokens: u64,
}

impl Client {
    pub(crate) fn new(target: Target, options: &Options) -> Self {
        Self {
            target,
            permits: Semaphore::new(options.concurrency),
            idle: RefCell::default(),
            timeout: Duration::from_secs_f64(options.timeout_s),
            stream: !options.no_stream,
            model: options.model.clone(),
            max_tokens: options.max_tokens,
        }
    }

    /// Sends the messages and reads the answer to its end. Err: the kind of failure.
    pub(crate) async fn chat(&self, messages: &[Value], intended: Instant) -> Result<Sample, String> {
        let _permit = self.permits.acquire().await.map_err(|_| "closed")?;
        let mut body = json!({"model": self.model, "messages": messages, "max_tokens": self.max_tokens});
        if self.stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        let body = Bytes::from(body.to_string());
        match tokio::time::timeout(self.timeout, self.exchange(body, intended)).await {
            Ok(outcome) => outcome,
            Err(_) => Err("timeout".into()),
        }
    }

    async fn exchange(&self, body: Bytes, intended: Instant) -> Result<Sample, String> {
        let (response, sender) = self.send(body).await?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(format!("status {status}"));
        }
        let engine = response.headers().get("x-engine").and_then(|name| name.to_str().ok()).map(str::to_owned);
        let mut sample = if self.stream {
            read_stream(response.into_body(), intended).await?
        } else {
            read_whole(response.into_body()).await?
        };
        sample.duration = intended.elapsed();
        sample.engine = engine;
        self.idle.borrow_mut().push((sender, Instant::now()));
        Ok(sample)
    }

    /// On a kept connection if there is one. One that the server closed meanwhile, before anything was sent, is replaced.
    async fn send(&self, body: Bytes) -> Result<(Response<Incoming>, Sender), String> {
        while let Some(mut sender) = self.kept() {
            match sender.try_send_request(self.request(body.clone())).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut error) => {
                    if error.take_message().is_none() {
                        return Err("no response on a kept connection".into());
                    }
                }
            }
        }
        let mut sender = self.connect().await?;
        let response = sender
            .send_request(self.request(body))
            .await
            .map_err(|error| if error.is_parse() { "malformed response" } else { "no response" })?;
        Ok((response, sender))
    }

    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE_LIMIT);
        // A connection whose last response has not been wound up yet is left for later.
        let ready = idle.iter().rposition(|(sender, _)| sender.is_ready())?;
        Some(idle.swap_remove(ready).0)
    }

    async fn connect(&self) -> Result<Sender, String> {
        let stream = TcpStream::connect((self.target.host.as_str(), self.target.port)).await.map_err(|_| "connect")?;
        // Without it a request would only be slower, not wrong.
        let _ = stream.set_nodelay(true);
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| "connect")?;
        // How it ends is seen by whoever uses the sender.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = hyper::Method::POST;
        // The path has been part of a parsed URI.
        *request.uri_mut() = self.target.path.parse().unwrap_or_default();
        for (name, value) in &self.target.fields {
            request.headers_mut().append(name, value.clone());
        }
        request
    }
}

async fn read_whole(body: Incoming) -> Result<Sample, String> {
    let bytes = body.collect().await.map_err(|_| "broken body")?.to_bytes();
    answer::whole(&bytes)
}

async fn read_stream(mut body: Incoming, intended: Instant) -> Result<Sample, String> {
    let mut events = answer::Events::new(intended);
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(|_| "broken body")?.into_data() {
            events.take(&bytes, Instant::now())?;
        }
    }
    events.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_requests_go() {
        let target = Target::parse("http://[::1]:80/base/", Some("k"), &["X-A: b: c".into()]).unwrap();
        assert_eq!((target.host.as_str(), target.port, target.path.as_str()), ("::1", 80, "/base/v1/chat/completions"));
        let fields: Vec<&str> = target.fields.iter().map(|(_, value)| value.to_str().unwrap()).collect();
        assert_eq!(fields, ["[::1]:80", "application/json", "Bearer k", "b: c"]);
        for wrong in ["https://a", "a:80", "", "http://"] {
            assert!(Target::parse(wrong, None, &[]).is_err(), "{wrong}");
        }
        assert!(Target::parse("http://a", None, &["no colon".into()]).is_err());
    }
}
