//! A real object store with objects as files, on a free port, and its faults.

#![allow(dead_code, reason = "each test program uses its part")]

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use s3s::service::{S3Service, S3ServiceBuilder};
use tempfile::TempDir;
use test_programs::ReservedPort;
use tokio::sync::{RwLock, watch};

/// The existing bucket.
pub(crate) const BUCKET: &str = "replies";
/// Instead of a status: no answer.
const SILENCE: u16 = 1;

/// Stopped on drop. Its objects stay until then, even while it is stopped.
pub(crate) struct S3Server {
    port: ReservedPort,
    folder: TempDir,
    keys: Option<(&'static str, &'static str)>,
    answers: Arc<S3Behavior>,
    running: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

#[derive(Default)]
struct S3Behavior {
    /// 0 = the object store's own answer.
    fault: AtomicU16,
    requests: AtomicU64,
    /// A lookup finds an object with its metadata, or no object, as S3 guarantees. This server
    /// writes the two separately, so the lock excludes lookups during a write.
    order: RwLock<()>,
}

impl S3Server {
    /// Starts a server without authentication.
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a server that requires these keys.
    pub(crate) fn start_with(keys: Option<(&'static str, &'static str)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let port = ReservedPort::new();
        let listener = port.listen();
        let mut server = Self {
            port,
            folder,
            keys,
            answers: Arc::default(),
            running: None,
        };
        server.run(listener);
        server
    }

    pub(crate) fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.send_replace(true);
            thread.join().unwrap();
        }
    }

    /// Starts on the same port again, after [`Self::stop`].
    pub(crate) fn start_again(&mut self) {
        let listener = self.port.listen();
        self.run(listener);
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    /// The section `l2` of a cache in this store.
    pub(crate) fn l2(&self) -> String {
        self.l2_at(self.port())
    }

    /// The same section for a proxy at another port.
    pub(crate) fn l2_at(&self, port: u16) -> String {
        format!("endpoint: \"http://127.0.0.1:{port}\", bucket: {BUCKET}")
    }

    /// Answers every request with this status.
    pub(crate) fn answer(&self, status: u16) {
        self.answers.fault.store(status, Ordering::Relaxed);
    }

    /// Answers no request.
    pub(crate) fn hang(&self) {
        self.answer(SILENCE);
    }

    /// Answers normally again.
    pub(crate) fn recover(&self) {
        self.answer(0);
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.answers.requests.load(Ordering::Relaxed)
    }

    /// The names of all objects, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let root = self.folder.path().join(BUCKET);
        let mut names = Vec::new();
        walk(&root, &root, &mut names);
        names.sort();
        names
    }

    /// The file of an object.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(name)
    }

    /// Removes the metadata of all objects, and keeps the objects.
    pub(crate) fn forget_metadata(&self) {
        for file in self.about_objects() {
            fs::remove_file(file).unwrap();
        }
    }

    /// The metadata of all objects.
    pub(crate) fn metadata(&self) -> String {
        self.about_objects()
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect()
    }

    fn about_objects(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|file| file.unwrap().path());
        files
            .filter(|file| file.to_string_lossy().ends_with(".metadata.json"))
            .collect()
    }

    fn run(&mut self, listener: TcpListener) {
        listener.set_nonblocking(true).unwrap();
        let mut builder =
            S3ServiceBuilder::new(s3s_fs::FileSystem::new(self.folder.path()).unwrap());
        if let Some((access, secret)) = self.keys {
            builder.set_auth(s3s::auth::SimpleAuth::from_single(access, secret));
        }
        let (service, answers) = (builder.build(), Arc::clone(&self.answers));
        let (stop, stopped) = watch::channel(false);
        // A separate thread: a test that keeps its own threads busy must not slow it down.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(serve(listener, service, answers, stopped));
            runtime.shutdown_background();
        });
        self.running = Some((stop, thread));
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn walk(root: &Path, folder: &Path, names: &mut Vec<String>) {
    for file in fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        if file.is_dir() {
            walk(root, &file, names);
        } else {
            names.push(
                file.strip_prefix(root)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }
}

async fn serve(
    listener: TcpListener,
    service: S3Service,
    answers: Arc<S3Behavior>,
    mut stopped: watch::Receiver<bool>,
) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        let (service, answers) = (service.clone(), Arc::clone(&answers));
        tokio::spawn(async move {
            let answer =
                service_fn(move |request| answer(service.clone(), Arc::clone(&answers), request));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

type ServerBody = BoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

async fn answer(
    service: S3Service,
    answers: Arc<S3Behavior>,
    request: Request<Incoming>,
) -> Result<Response<ServerBody>, Box<dyn std::error::Error + Send + Sync>> {
    answers.requests.fetch_add(1, Ordering::Relaxed);
    match answers.fault.load(Ordering::Relaxed) {
        0 => {
            let (_reads, _writes) = match *request.method() {
                Method::GET => (Some(answers.order.read().await), None),
                _ => (None, Some(answers.order.write().await)),
            };
            let response = hyper::service::Service::call(&service, request)
                .await
                .map_err(|it| format!("{it:?}"))?;
            Ok(response.map(|body| {
                body.map_err(|it| -> Box<dyn std::error::Error + Send + Sync> {
                    it.to_string().into()
                })
                .boxed()
            }))
        }
        SILENCE => std::future::pending().await,
        status => {
            let text = Bytes::from_static(
                b"<Error><Code>Made</Code><Message>AKIASECRET</Message></Error>",
            );
            let mut response =
                Response::new(Full::new(text).map_err(|never| match never {}).boxed());
            *response.status_mut() = StatusCode::from_u16(status)?;
            Ok(response)
        }
    }
}
