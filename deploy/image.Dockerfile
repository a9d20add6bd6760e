# An image of the released binary and nothing else: deploy/release.sh puts this file beside the
# binaries, in the folder `image` of the release.
#   docker build -t weir target/release-0.1.0/image
#   docker run -p 8080:8080 -v "$PWD/my-config:/etc/weir:ro" weir
# gateway.yaml must listen on 0.0.0.0:8080, and all users must be able to read its files. Root
# certificates and time zones are in the binary.
FROM scratch
ARG TARGETARCH=amd64
COPY --chmod=0755 $TARGETARCH/weir /usr/bin/weir
# Where commands find gateway.yaml.
WORKDIR /etc/weir
USER 65534:65534
EXPOSE 8080
# Needs the admin listener: `admin: {address: "127.0.0.1:9901"}`. The address is written here, so that
# an error in the file on disk, which the gateway refuses to load, does not fail the check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
    CMD ["/usr/bin/weir", "health", "--admin", "127.0.0.1:9901"]
# The exec form lets SIGTERM reach the gateway, which then drains.
ENTRYPOINT ["/usr/bin/weir"]
CMD ["run"]
